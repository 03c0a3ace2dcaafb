"""The world's solutions, and a small transformer taught with a label per step or with the outcome."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from transformers import LlamaConfig, LlamaModel

from rlhf_core.data import Prompt
from rlhf_core.distributed import LocalStrategy
from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_core.training import Learner
from rlhf_plugin_prm.config import PrmConfig
from rlhf_plugin_prm.data.config import ChainStepsConfig
from rlhf_plugin_prm.data.sources import ChainSource
from rlhf_plugin_prm.examples import Solution, read_solutions
from rlhf_plugin_prm.loss import StepBce
from rlhf_plugin_prm.net import StepEncoder, StepModule, encode_solutions, step_probabilities
from rlhf_plugin_reward.net import RewardNet, new_head

WORLD: Mapping[str, Any] = {"terms": (2, 3), "largest": 6}
MIXES: Mapping[str, Mapping[str, float]] = {
    "all kinds": {"carried": 1.0, "slip": 0.5, "cancelled": 0.5},
    "wrong answers only": {"carried": 2.0, "slip": 0.0, "cancelled": 0.0},
}
WRONG = ("carried", "slip", "cancelled")
TRUNK: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
TRAINER = {
    "batch_size": 32,
    "micro_batch_size": 32,
    "optimizer": {"learning_rate": 3e-3, "warmup_steps": 50, "schedule": "cosine"},
}
Target = Literal["steps", "outcome"]


def solutions(seed: int, split: str, kinds: Mapping[str, float], chains: int) -> list[tuple[str, Solution]]:
    """(kind, solution) of a split; the questions are the same whatever the kinds."""
    config = ChainStepsConfig.model_validate({**WORLD, "chains": chains, **kinds, "seed": seed})
    rows = ChainSource(config).rows(split)
    prompts = [Prompt(row["id"], ({"role": "user", "content": row["prompt"]},), meta=row) for row in rows]
    return [(str(row["kind"]), s) for row, s in zip(rows, read_solutions(prompts, "newline", str))]


def heldout(seed: int, chains: int) -> list[tuple[str, Solution]]:
    """Every held-out question solved in every way."""
    return solutions(seed, "heldout", dict.fromkeys(WRONG, 1.0), chains)


def learn(seed: int, mix: str, target: Target, updates: int, chains: int) -> dict[str, Any]:
    """Train one model with the plugin's own parts; return what it thinks of every step of the held-out solutions."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = load_tokenizer(ModelConfig())
    encoder = StepEncoder(tokenizer, TRUNK["max_position_embeddings"])
    taught = [solution for _, solution in solutions(seed, "train", MIXES[mix], chains)]
    items = encode_solutions(taught, encoder, target, False, Counter())
    trunk = LlamaModel(LlamaConfig(vocab_size=len(tokenizer), **TRUNK))
    net = RewardNet(trunk, new_head(TRUNK["hidden_size"], 1, seed))
    strategy = LocalStrategy("cpu")
    module = strategy.prepare(StepModule(net))
    learner = Learner(module, StepBce(), strategy, PrmConfig.model_validate(TRAINER), updates)
    began, rng = time.process_time(), np.random.default_rng(seed)
    losses = [learner.update([items[i] for i in rng.integers(0, len(items), 32)])["loss"] for _ in range(updates)]
    coded = [encoder.encode(s.prompt, s.text, s.steps) for _, s in heldout(seed, chains)]
    right = step_probabilities(net.eval(), [ids for ids, *_ in coded], [ends for _, ends, *_ in coded], 16384)
    return {
        "right": [[round(float(p), 6) for p in row] for row in right],
        "loss": round(float(np.mean(losses[-50:])), 4),
        "cpu_seconds": round(time.process_time() - began, 1),
        "train_solutions": len(items),
    }

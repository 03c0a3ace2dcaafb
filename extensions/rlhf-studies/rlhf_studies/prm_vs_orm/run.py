"""Both models a seed and mix, and what each makes of the same held-out solutions."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import LlamaConfig, LlamaModel

from rlhf_core.data import Prompt, write_json
from rlhf_core.distributed import LocalStrategy
from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_core.training import Learner
from rlhf_plugin_prm.config import PrmConfig
from rlhf_plugin_prm.data.config import ChainStepsConfig
from rlhf_plugin_prm.data.sources import ChainSource
from rlhf_plugin_prm.examples import Solution, read_solutions
from rlhf_plugin_prm.first_error import report
from rlhf_plugin_prm.loss import StepBce
from rlhf_plugin_prm.net import StepEncoder, StepModule, encode_solutions, step_probabilities
from rlhf_plugin_prm.reward import aggregate
from rlhf_plugin_reward.net import RewardNet, new_head
from rlhf_studies.common.scores import auc
from rlhf_studies.prm_vs_orm.config import PrmVsOrmConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean, spread

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
    config = ChainStepsConfig.model_validate({**WORLD, "chains": chains, **kinds, "seed": seed})
    rows = ChainSource(config).rows(split)
    prompts = [Prompt(row["id"], ({"role": "user", "content": row["prompt"]},), meta=row) for row in rows]
    return [(str(row["kind"]), s) for row, s in zip(rows, read_solutions(prompts, "newline", str))]


def heldout(seed: int, chains: int) -> list[tuple[str, Solution]]:
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


TARGETS: Mapping[str, Target] = {"prm": "steps", "orm": "outcome"}
Reading = Literal["orm", "min", "mean", "product", "last"]
READINGS: tuple[Reading, ...] = ("orm", "min", "mean", "product", "last")
FALSE_ALARMS = 0.05


class PrmVsOrm(Study[PrmVsOrmConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        return {mix: self.compared(seed, mix, folder) for mix in self.config.mixes}

    def compared(self, seed: int, mix: str, folder: Path) -> dict[str, Any]:
        models = {name: self.model(seed, mix, name, folder) for name in TARGETS}
        heldout_rows = heldout(seed, self.config.chains)
        kinds, first_errors = [kind for kind, _ in heldout_rows], [solution.first_error for _, solution in heldout_rows]
        right = {name: [np.array(row) for row in model["right"]] for name, model in models.items()}
        return {
            "solutions": Counter(kinds),
            "readings": {how: flagged(reading(right, how), kinds) for how in READINGS},
            "first_error": {name: report(rows, first_errors) for name, rows in right.items()},
            "training": {name: {k: v for k, v in m.items() if k != "right"} for name, m in models.items()},
        }

    def model(self, seed: int, mix: str, name: str, folder: Path) -> dict[str, Any]:
        file = folder / f"{mix.replace(' ', '_')}-{name}.json"
        if not file.is_file():
            write_json(file, learn(seed, mix, TARGETS[name], self.config.updates, self.config.chains))
        return json.loads(file.read_text())

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        by_mix = {mix: [figures[mix] for figures in results.values()] for mix in self.config.mixes}
        headers = ("trained on", "reading", "wrong answer", "slip, right answer", "cancelled, right answer")
        shares = markdown(headers, [row for mix, figures in by_mix.items() for row in flagged_rows(mix, figures)])
        note = "First wrong step, F1 at the threshold chosen on the other half (chance):"
        f1 = markdown(
            ("trained on", "PRM", "ORM read at every step"),
            [(mix, *(first_error(figures, name) for name in TARGETS)) for mix, figures in by_mix.items()],
        )
        return f"{shares}\n\n{note}\n\n{f1}"


def reading(right: Mapping[str, Sequence[Any]], how: Reading) -> Any:
    """One score per solution: the outcome model's last step, or the process model's steps made into one."""
    if how == "orm":
        return np.array([aggregate(row, "last") for row in right["orm"]])
    return np.array([aggregate(row, how) for row in right["prm"]])


def flagged(scores: Any, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each wrong kind: the share flagged at a threshold that flags one right solution in 20, and the AUC."""
    of = {kind: scores[[k == kind for k in kinds]] for kind in ("right", *WRONG)}
    threshold = float(np.quantile(of["right"], FALSE_ALARMS))
    return {
        kind: {
            "flagged": round(float((of[kind] < threshold).mean()), 4),
            "auc": round(auc(of["right"], of[kind]), 4),
        }
        for kind in WRONG
    }


def flagged_rows(mix: str, seeds: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            mix,
            "ORM" if how == "orm" else f"PRM, {how}",
            *(spread([seed["readings"][how][kind]["flagged"] for seed in seeds], 2) for kind in WRONG),
        )
        for how in READINGS
    ]


def first_error(seeds: Sequence[Mapping[str, Any]], name: str) -> str:
    """F1, and what scores that know nothing reach."""
    reports = [seed["first_error"][name] for seed in seeds]
    return f"{spread([r['crossed']['f1'] for r in reports], 2)} ({mean([r['chance'] for r in reports]):.2f})"

"""The gradient of one fixed batch under any set of optimisations.

Imported by a test; run by torchrun it does every pair that has two ranks in it, the batch split unevenly, and rank 0
writes how far each is from the plain gradient.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward import PLAIN, ForwardOptions
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import MicroBatcher, by_tokens, micro_batches_of_size
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_grpo.loss import GrpoClip

PATHS = ("packing", "share_prefix", "chunked_head")
OPTIONS = (*PATHS, "accumulation", "by_tokens", "lora", "checkpointing", "ranks")
PAIRS = [frozenset(pair) for pair in itertools.combinations(OPTIONS, 2)]


def items(vocabulary: int = 700) -> list[TrainingSample]:
    """Seven completions of three prompts; lengths and advantages differ, one has no advantage."""
    rng = np.random.default_rng(5)
    prompts = [tuple(int(t) for t in rng.integers(6, vocabulary, n)) for n in (5, 9, 7)]
    rows: list[TrainingSample] = []
    for i in range(7):
        count = int(rng.integers(1, 12))
        ids = tuple(int(t) for t in rng.integers(6, vocabulary, count))
        advantages = np.full(count, [1.0, -0.5, 0.3, 0.0, -1.2, 2.0, 0.7][i], np.float32)
        old = rng.normal(-3, 1, count).astype(np.float32)
        rows.append(
            TrainingSample(f"i{i}", prompts[i % 3], ids, np.ones(count, bool), advantages, old_T=old, ref_T=old)
        )
    return rows


def policy(options: frozenset[str], path: str = "pocket", *, weights: bool = True) -> LoadedModel:
    """The model, with adapters that are not zero if asked for; its own weights may be left on disk."""
    lora = LoraSettings(r=4) if "lora" in options else None
    config = ModelConfig(path=path, lora=lora, gradient_checkpointing="checkpointing" in options)
    loaded = load_policy(config, weights=weights)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return loaded


def captured(strategy: Any) -> dict[str, torch.Tensor]:
    """Let a strategy put the gradient there, as it is just before clipping."""
    found: dict[str, torch.Tensor] = {}
    clip = strategy.clip_grad_norm

    def capture(module: Any, max_norm: float) -> float:
        parameters = strategy.unwrap(module).named_parameters()
        found.update({k: p.grad.clone() for k, p in parameters if p.grad is not None})
        return clip(module, max_norm)

    strategy.clip_grad_norm = capture
    return found


def _by_tokens(paths: ForwardOptions, rows: Any) -> list[list[int]]:
    return by_tokens(rows, 30, paths, 64)


def gradient(options: frozenset[str], path: str = "pocket", strategy: Any = None) -> dict[str, torch.Tensor]:
    """Gradient of the batch; of two ranks the first has five of the seven items."""
    strategy = strategy or LocalStrategy()
    found, loaded = captured(strategy), policy(options, path)
    paths = ForwardOptions(**{name: name in options for name in PATHS})
    module = strategy.prepare(PolicyModule(loaded.model, 1.0, paths))
    rows = items()
    share = rows if strategy.world_size == 1 else (rows[:5] if strategy.rank == 0 else rows[5:])
    micro_batcher: MicroBatcher = micro_batches_of_size(2 if "accumulation" in options else len(rows))
    if "by_tokens" in options:
        micro_batcher = functools.partial(_by_tokens, paths)
    Learner(module, GrpoClip(0.2, 0.2), strategy, OnlineTrainerConfig(name="t"), 1, micro_batcher=micro_batcher).update(
        share
    )
    return found


@functools.cache
def plain(lora: bool, path: str = "pocket") -> dict[str, torch.Tensor]:
    """One process, one micro-batch, padded rows, all logits."""
    assert not PLAIN.names
    return gradient(frozenset({"lora"} if lora else ()), path)


def distance(options: frozenset[str], path: str = "pocket", strategy: Any = None) -> float:
    """Largest difference from the plain gradient."""
    got, want = gradient(options, path, strategy), plain("lora" in options, path)
    assert got.keys() == want.keys()
    assert max(float(g.abs().max()) for g in want.values()) > 1e-3, "the gradient is there"
    return max(float((got[k] - want[k]).abs().max()) for k in want)


def exchanges(options: frozenset[str], strategy: Any) -> int:
    """How often ranks exchange gradients in one update."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    calls: list[int] = []
    prepare = strategy.prepare

    def exchange(bucket: Any) -> Any:
        calls.append(bucket.index())
        return allreduce_hook(torch.distributed.group.WORLD, bucket)

    def prepared(module: torch.nn.Module) -> torch.nn.Module:
        wrapped: Any = prepare(module)
        wrapped.register_comm_hook(None, lambda _, bucket: exchange(bucket))
        return wrapped

    strategy.prepare = prepared
    gradient(options, strategy=strategy)
    strategy.prepare = prepare
    return len(calls)


def main(out: str) -> None:
    """Every pair with two ranks in it."""
    world = int(os.environ["WORLD_SIZE"])
    strategy = AcceleratedStrategy(world, "cpu", 60)
    clip = strategy.clip_grad_norm
    found: dict[str, float] = {}
    for pair in (p for p in PAIRS if "ranks" in p):
        strategy.clip_grad_norm = clip
        found["+".join(sorted(pair))] = distance(pair, strategy=strategy)
    found["exchanges"] = exchanges(frozenset(), strategy)
    found["exchanges of three micro-batches"] = exchanges(frozenset({"accumulation"}), strategy)
    if strategy.rank == 0:
        Path(out).write_text(json.dumps(found))
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1])

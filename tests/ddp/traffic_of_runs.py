"""Runs on two ranks, with the sizes of all that each rank is sent, and of what it needs.

Run by torchrun; each rank writes what it saw. Imported, it says which runs there are.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config.load import validate
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.plugins.hooks import HookBus, HookManager
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch.process_end import hard_exit
from rlhf_core.runs.launch.run import plan_run, run_plan
from rlhf_core.training.generation import RolloutGenerator
from rlhf_core.training.learner import Learner

from .engine_loss import stay_joined

BASE = {
    "threads": 1,
    "dataset": {"name": "pocket", "subset": "arithmetic", "limit": 64},
    "reward": {"name": "verifier", "workers": 1},
}
SAMPLING = {"max_tokens": 20, "temperature": 1.5}
ITERATIVE = {
    "name": "iterative_dpo",
    "steps": 2,
    "rollout_batches": 1,
    "updates": 2,
    "pair_batch_size": 4,
    "rollout_batch_size": 32,
    "group_size": 4,
    "micro_batch_size": 8,
    "eval_samples": 4,
    "gold_samples": 0,
    "buffer": "rolling",
    "kl": {"track": True},
    "sampling": SAMPLING,
    "checkpoint_every": 2,
    "optimizer": {"eps": 1e-3, "learning_rate": 1e-3, "warmup_steps": 0},
}
GRPO = {
    "name": "grpo",
    "steps": 2,
    "rollout_batch_size": 32,
    "train_batch_size": 16,
    "group_size": 4,
    "micro_batch_size": 8,
    "eval_samples": 0,
    "gold_samples": 0,
    "trace_prompts": 6,
    "sampling": {"max_tokens": 200, "temperature": 3.0},
    "checkpoint_every": 0,
    "optimizer": {"eps": 1e-3, "learning_rate": 1e-3},
}
SFT = {
    "name": "sft",
    "max_steps": 2,
    "batch_size": 4,
    "micro_batch_size": 4,
    "eval_samples": 2,
    "eval_every": 1,
    "sample_prompts": 8,
    "track_kl": True,
    "sampling": SAMPLING,
    "checkpoint_every": 0,
    "optimizer": {"eps": 1e-3, "learning_rate": 1e-3},
}
FROZEN = {
    "name": "reward_model",
    "train_trunk": "frozen",
    "max_steps": 3,
    "batch_size": 4,
    "micro_batch_size": 4,
    "eval_samples": 2,
    "checkpoint_every": 0,
}
FEATURES = 2 * (FROZEN["max_steps"] * FROZEN["batch_size"] + FROZEN["eval_samples"]) * 160 * 4
"""Bytes of the features that its trunk gives, of two conversations per example; rank 0 computes all of so few."""
RUNS: dict[str, dict[str, Any]] = {
    "iterative_dpo": {**BASE, "trainer": ITERATIVE},
    "iterative_dpo by rank": {
        **BASE,
        "trainer": {**ITERATIVE, "kl": {"track": True, "sync_every": 1}},
        "loss": {"name": "aot_unpaired"},
    },
    "grpo": {
        "threads": 1,
        "dataset": {"name": "pocket", "subset": "assistant", "limit": 64},
        "reward": {"name": "programmatic"},
        "trainer": GRPO,
    },
    "sft": {**BASE, "trainer": SFT},
    "frozen trunk": {"threads": 1, "dataset": {"limit": 64}, "trainer": FROZEN},
}


def train(settings: dict[str, Any], folder: Path, ranks: int) -> None:
    """One of the runs, by this process or this rank."""
    registry, bus = Registry(disabled=()), HookBus(HookManager())
    config = validate(registry, settings)
    run_plan(plan_run(registry, bus, config, ranks), config, registry, bus, folder, resume=False)


class Sizes:
    """Of one run: bytes."""

    def __init__(self) -> None:
        self.received: list[tuple[str, int]] = []
        """From the other rank, exchange by exchange: what it holds, and its size."""
        self.trained: list[int] = []
        """Of this rank's part of each update."""
        self.sampled: list[int] = []
        """Of what this rank sampled, batch by batch."""


def said(sent: bytes) -> tuple[str, int]:
    """What a value holds, and its size."""
    kinds = {b"Rollout": "completions", b"PairItem": "pairs", b"_rebuild_tensor": "tensors"}
    return next((kind for name, kind in kinds.items() if name in sent), ""), len(sent)


def watch(sizes: list[Sizes]) -> None:
    """Add to the last of ``sizes`` from now on."""

    def counted(exchange: Any) -> Any:
        def call(self: AcceleratedStrategy, value: Any) -> list[Any]:
            values = exchange(self, value)
            sizes[-1].received += [said(pickle.dumps(v)) for n, v in enumerate(values) if n != self.rank]
            return values

        return call

    def update(self: Learner, samples: Sequence[Any], *args: Any, **options: Any) -> Any:
        sizes[-1].trained.append(len(pickle.dumps(list(samples))))
        return plain_update(self, samples, *args, **options)

    def sample(self: RolloutGenerator, *args: Any, **options: Any) -> Any:
        rollouts = plain_sample(self, *args, **options)
        sizes[-1].sampled.append(len(pickle.dumps(rollouts)))
        return rollouts

    plain_update, plain_sample = Learner.update, RolloutGenerator.sample
    AcceleratedStrategy.gather_objects = counted(AcceleratedStrategy.gather_objects)
    AcceleratedStrategy.exchange_objects = counted(AcceleratedStrategy.exchange_objects)
    Learner.update, RolloutGenerator.sample = update, sample


def main(folder: Path) -> None:
    """Every run."""
    AcceleratedStrategy.close = stay_joined
    sizes: list[Sizes] = []
    watch(sizes)
    for name, settings in RUNS.items():
        sizes.append(Sizes())
        train(settings, folder / name, 2)
    rows = {name: vars(of_run) for name, of_run in zip(RUNS, sizes)}
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    hard_exit(0)

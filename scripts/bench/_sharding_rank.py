"""One rank of :mod:`.sharding`: torchrun starts it, rank 0 writes what it found."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import micro_batches_of_size
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_module import PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_grpo.loss import GrpoClip

CONFIG = OnlineTrainerConfig(name="t")


class Training:
    """A policy, its optimizer and one batch under a strategy."""

    def __init__(self, strategy: Any, path: str, samples: Sequence[TrainingSample], micro_batches: int) -> None:
        self.strategy, self.samples = strategy, samples
        self.module = PolicyModule(load_policy(ModelConfig(path=path)).model, 1.0)
        prepared, self.optimizer = prepare_to_learn(strategy, self.module, CONFIG.optimizer)
        cut = micro_batches_of_size(len(samples) // micro_batches)
        self.learner = Learner(
            prepared, GrpoClip(0.2, 0.2), strategy, CONFIG, 100, micro_batcher=cut, optimizer=self.optimizer
        )

    def step(self) -> float:
        self.strategy.barrier("a step")
        start = time.perf_counter()
        self.learner.update(self.samples)
        self.strategy.barrier("a step")
        return time.perf_counter() - start

    def collectives(self) -> Counter[str]:
        """How often ranks exchange something in one update, by kind."""
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            self.learner.update(self.samples)
        names = (event.name for event in seen.events() or ())
        return Counter(name.removeprefix("gloo:") for name in names if name.startswith("gloo:"))

    def static_bytes(self) -> int:
        """Of weights and moments that this rank holds between two steps, and of gradients that stay."""
        inner: Any = self.optimizer.inner  # pyright: ignore[reportAttributeAccessIssue]
        tensors: list[Any] = [t for p in self.module.parameters() for t in (p, p.grad) if t is not None]
        tensors += [v for row in inner.state.values() for v in row.values() if torch.is_tensor(v)]
        held = {id(t): t.to_local() if hasattr(t, "to_local") else t for t in tensors}
        return sum(t.numel() * t.element_size() for t in held.values())


def batch(rank: int, count: int, prompt: int, completion: int) -> list[TrainingSample]:
    rng = np.random.default_rng([3, rank])
    samples: list[TrainingSample] = []
    for n in range(count):
        ids = [tuple(int(t) for t in rng.integers(6, 700, size)) for size in (prompt, completion)]
        old, ones = rng.normal(-3, 1, completion).astype(np.float32), np.ones(completion, bool)
        advantages = np.full(completion, rng.normal(), np.float32)
        samples.append(TrainingSample(f"{rank}-{n}", ids[0], ids[1], ones, advantages, old_T=old, ref_T=old))
    return samples


def main(path: str, sizes: str, rounds: int, out: str) -> None:
    """Both strategies take turns, step by step, so that whatever else the machine does meets both."""
    count, prompt, completion, micro_batches = json.loads(sizes)
    torch.set_num_threads(1)
    ranks = AcceleratedStrategy(int(os.environ["WORLD_SIZE"]), "cpu", 600)
    samples = batch(ranks.rank, count, prompt, completion)
    both = {
        "ddp": Training(ranks, path, samples, micro_batches),
        "fsdp": Training(Fsdp(FsdpConfig(), ranks), path, samples, micro_batches),  # pyright: ignore[reportCallIssue]
    }
    for training in both.values():
        training.step()
    seconds = [{name: training.step() for name, training in both.items()} for _ in range(rounds)]
    figures = {
        "layers": both["ddp"].module.model.config.num_hidden_layers,  # pyright: ignore[reportAttributeAccessIssue]
        "micro_batches": micro_batches,
        "static_bytes": {name: ranks.max_over_ranks(training.static_bytes()) for name, training in both.items()},
        "seconds_per_step": {name: statistics.median(row[name] for row in seconds) for name in both},
        "fsdp_over_ddp": [row["fsdp"] / row["ddp"] for row in seconds],
        "collectives": {name: dict(training.collectives()) for name, training in both.items()},
    }
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(figures, indent=1))
    ranks.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])

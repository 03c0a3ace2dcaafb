"""Run by torchrun: the gradient of one fixed batch, split unevenly over the ranks; rank 0 saves it."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.strategy.accelerated import AcceleratedStrategy
from rlhf_core.trainers.config import OnlineTrainerConfig
from rlhf_core.trainers.foundry import TokenFoundry
from rlhf_core.trainers.items import TrainItem
from rlhf_core.trainers.update import Updater
from rlhf_plugin_grpo.loss import GrpoClip


def items() -> list[TrainItem]:
    """Seven completions of three prompts; lengths and advantages differ, one has no advantage."""
    rng = np.random.default_rng(5)
    prompts = [tuple(int(t) for t in rng.integers(6, 700, n)) for n in (5, 9, 7)]
    rows: list[TrainItem] = []
    for i in range(7):
        count = int(rng.integers(1, 12))
        ids = tuple(int(t) for t in rng.integers(6, 700, count))
        advantages = np.full(count, [1.0, -0.5, 0.3, 0.0, -1.2, 2.0, 0.7][i], np.float32)
        old = rng.normal(-3, 1, count).astype(np.float32)
        rows.append(TrainItem(f"i{i}", prompts[i % 3], ids, np.ones(count, bool), advantages, old_T=old, ref_T=old))
    return rows


class Capture(AcceleratedStrategy):
    """Remembers the gradient as it is just before clipping."""

    gradient: dict[str, torch.Tensor]

    def clip_grad_norm(self, module: Any, max_norm: float) -> float:
        """Copy, then clip."""
        parameters = self.unwrap(module).named_parameters()
        self.gradient = {k: p.grad.clone() for k, p in parameters if p.grad is not None}
        return super().clip_grad_norm(module, max_norm)


def main(out: str, micro: int, share: bool) -> None:
    """Two ranks take 5 and 2 items; one process takes all."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = Capture(world, "cpu", 60)
    module = strategy.prepare(TokenFoundry(load_policy(ModelConfig()).model, 1.0, share))
    rows = items()
    mine = rows if world == 1 else (rows[:5] if strategy.rank == 0 else rows[5:])
    settings = OnlineTrainerConfig(name="t", micro_batch_size=micro)
    Updater(module, GrpoClip(0.2, 0.2), strategy, settings, 1).update(mine)
    if strategy.rank == 0:
        save_file(strategy.gradient, out)
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "share")

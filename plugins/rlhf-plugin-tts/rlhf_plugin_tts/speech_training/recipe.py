"""Settings that were vetted for pocket-voice, as `rlhf train --config` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SCALES: Mapping[str, tuple[float, float]] = MappingProxyType({"dnsmos": (2.9, 0.17), "phones": (-0.32, 0.2)})
"""Mean and standard deviation of pocket-voice's scores at temperature 1 on the sentences it is trained on, rounded.
Fixed, so that an evaluation can be compared with an earlier one and scoring can go to several processes."""
BUFFERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "fresh": {"buffer": "current"},
        "rolling2": {"buffer": "rolling", "buffer_iterations": 2},
        "full": {"buffer": "full"},
    }
)
"""Name -> settings of iterative DPO: an iteration learns from its own pairs, those of two, or all."""


def calibrated(name: str, weight: float) -> dict[str, Any]:
    """A part of the composite whose z-scores have fixed statistics."""
    mean, std = SCALES[name]
    fixed = {"normalise": "zscore", "statistics": "calibrated", "mean": mean, "std": std, "clip": 3.0}
    reward = {"name": name, **({"only_value": True} if name == "dnsmos" else {})}
    return {"reward": reward, "weight": weight, **fixed}


def composite() -> dict[str, Any]:
    """Quality (P.808 alone) and the right phones in equal parts, with guards; no recogniser, which the report has."""
    return {"name": "speech", "parts": {"quality": calibrated("dnsmos", 0.5), "words": calibrated("phones", 0.5)}}


def sampling() -> dict[str, Any]:
    return {
        "sampling": {"max_tokens": 480, "temperature": 1.0},
        "eval_samples": 20,
        "gold_samples": 0,
        "reward_timeout_s": 120.0,
    }


def iterative_dpo(iterations: int, buffer: str) -> dict[str, Any]:
    """Trainer section; the preferred clip's likelihood is part of the loss (arXiv:2404.19733)."""
    return {
        "name": "iterative_dpo",
        "steps": iterations,
        "rollout_batch_size": 480,
        "group_size": 8,
        "updates": 8,
        "pair_batch_size": 30,
        "micro_batch_size": 30,
        "checkpoint_every": 1,
        "sft": {"weight": 1.0},
        "optimizer": {"learning_rate": 2e-4, "warmup_steps": 2},
        **BUFFERS[buffer],
        **sampling(),
    }


def grpo(iterations: int) -> dict[str, Any]:
    """Trainer section: as many clips as iterative DPO of as many iterations, in three times as many steps."""
    return {
        "name": "grpo",
        "steps": 3 * iterations,
        "rollout_batch_size": 160,
        "group_size": 8,
        "micro_batch_size": 40,
        "eval_every": 3,
        "checkpoint_every": 2,
        "optimizer": {"learning_rate": 3e-4, "warmup_steps": 2},
        **sampling(),
    }

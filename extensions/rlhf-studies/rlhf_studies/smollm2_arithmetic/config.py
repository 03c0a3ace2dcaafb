from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class Smollm2ArithmeticConfig(StudyConfig):
    """Does a real model learn a checkable task? SmolLM2-135M-Instruct, sums of two-digit numbers, GRPO and a verifier
    (``configs/smollm2_arithmetic.yaml``); the same held-out sums before and after, greedily and sampled."""

    name: str = "smollm2_arithmetic"
    component: ClassVar[str] = "rlhf_studies.smollm2_arithmetic.run:Smollm2Arithmetic"
    smoke: ClassVar[Mapping[str, Any]] = {
        "model": "pocket",
        "sums": 4,
        "train": {"trainer": {**smoke.ONLINE["trainer"], "steps": 2, "eval_every": 1}},
    }

    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    """Hub id, folder or .gguf file; None takes $RLHF_SMOLLM2_GGUF, else the hub's."""
    sums: int = Field(default=256, ge=2)
    """Held-out sums to ask."""
    train: Mapping[str, Any] = {}
    """Further settings of the run."""

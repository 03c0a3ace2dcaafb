from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig


class Smollm2ProbeConfig(StudyConfig):
    """What does a real model know of wrong steps before it is taught? Two linear heads on a frozen SmolLM2-135M's
    hidden states, one taught with a label per step, one with the outcome alone, tested on ProcessBench's GSM8K part."""

    name: str = "smollm2_probe"
    component: ClassVar[str] = "rlhf_studies.smollm2_probe.run:Smollm2Probe"
    smoke: ClassVar[Mapping[str, Any]] = {"model": "pocket", "problems": 20, "solutions": 40, "dtype": "float32"}

    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    """Hub id, folder or .gguf file; None takes $RLHF_SMOLLM2_GGUF, else the hub's."""
    data: Path | None = None
    """Folder with ``gsm8k/`` and ``processbench/``; None takes $RLHF_TEST_DATA."""
    problems: int = Field(default=600, ge=10)
    """GSM8K problems, two solutions each, to learn from."""
    solutions: int = Field(default=400, ge=10)
    """Of ProcessBench, evenly from its 400."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the frozen trunk."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Of the heads."""

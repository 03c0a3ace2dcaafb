from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlhf_study.config import StudyConfig


class Smollm2PrmConfig(StudyConfig):
    """Does a real model find the first wrong step? ``configs/smollm2_prm.yaml`` trains SmolLM2-135M-Instruct with a
    label per step and with the outcome alone; both are tested on ProcessBench's GSM8K part (F1 as defined there)."""

    name: str = "smollm2_prm"
    component: ClassVar[str] = "rlhf_studies.smollm2_prm.run:Smollm2Prm"
    smoke: ClassVar[Mapping[str, Any]] = {
        "model": "pocket",
        "shortest": 4,
        "train": {
            "trainer": {"max_steps": 1, "eval_samples": 4},
            "dataset": {"problems": 16, "max_dropped_fraction": 0.9},
        },
    }

    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    """Hub id, folder or .gguf file; None takes $RLHF_SMOLLM2_GGUF, else the hub's."""
    data: Path | None = None
    """Folder with ``gsm8k/`` and ``processbench/``; None takes $RLHF_TEST_DATA."""
    shortest: int | None = None
    """Only so many of ProcessBench's solutions, the shortest."""
    train: Mapping[str, Any] = {}
    """Further settings of both runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from rlhf_study.config import StudyConfig


class MaskedHeadConfig(StudyConfig):
    """One forward and backward over a batch of episodes: the head on every token, and on the policy's tokens alone, in
    turns in one process. Compare CPU seconds on a shared machine; the gradients differ by rounding."""

    name: str = "masked_head"
    component: ClassVar[str] = "rlhf_studies.masked_head.run:MaskedHead"
    smoke: ClassVar[Mapping[str, Any]] = {"model": "pocket", "episodes": 2, "rounds": 1}

    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    """Hub id, folder or .gguf file; None takes $RLHF_SMOLLM2_GGUF, else the hub's."""
    episodes: int = Field(default=16, ge=1)
    rounds: int = Field(default=3, ge=1)

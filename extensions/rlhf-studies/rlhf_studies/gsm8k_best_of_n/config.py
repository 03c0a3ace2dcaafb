from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig


class Gsm8kBestOfNConfig(StudyConfig):
    """GSM8K with SmolLM2-135M-Instruct: pass@k, best-of-N by logprob and by a reward model, majority, in two styles of
    prompt; and lm-evaluation-harness's own filters on the same completions, where it is installed.
    """

    name: str = "gsm8k_best_of_n"
    component: ClassVar[str] = "rlhf_studies.gsm8k_best_of_n.run:Gsm8kBestOfN"
    smoke: ClassVar[Mapping[str, Any]] = {"prompts": 2, "samples": 2, "max_tokens": 8, "chunk": 4}

    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    """Hub id, folder or .gguf file; None takes $RLHF_SMOLLM2_GGUF, else the hub's."""
    data: Path | None = None
    """``test.jsonl`` of GSM8K, .gz too; None takes that of $RLHF_TEST_DATA."""
    best_by: tuple[str, ...] = ()
    """As for `rlhf eval`: a folder, or ``reward:{name: ensemble, pairs: ...}``."""
    styles: tuple[Literal["r1_zero", "plain"], ...] = ("r1_zero", "plain")
    prompts: int = Field(default=200, ge=1)
    samples: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=160, ge=1)
    chunk: int = Field(default=64, ge=1)
    """Completions between two writes: what an interruption can lose."""
    budget: float | None = None
    """Seconds for each style; the figures are then of the prompts that there are."""

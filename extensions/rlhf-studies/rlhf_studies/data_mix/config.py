from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import TWO_DIGITS, SumsAblation, gsm8k, sums
from rlhf_study.ablation.config import Claim, Settings

MATH: Settings = {
    "source": {"name": "hub", "path": "HuggingFaceH4/MATH-500", "heldout_split": "test"},
    "columns": {"prompt": "problem"},
}


class DataMixConfig(SumsAblation):
    """GRPO on sums alone, and on sums of small and of two-digit numbers; compared on the former."""

    name: str = "data_mix"
    arms: Mapping[str, Settings] = {
        "one task": {},
        "mix": sums({"source": TWO_DIGITS}),
    }
    real_arms: ClassVar[Mapping[str, Settings]] = {"mix": {**gsm8k(MATH), "reward": {"verifier": {"name": "math"}}}}
    metric: str = "eval/copy1/reward/part/answer"
    claims: tuple[Claim, ...] = (
        Claim("001:1531", "Does a mix learn less of the task than the task alone?", "mix", "one task"),
    )

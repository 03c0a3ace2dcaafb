from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class TokenLimitConfig(SumsAblation):
    """GRPO with at most 8, 10, 16 and 64 tokens; an answer takes ten."""

    name: str = "token_limit"
    arms: Mapping[str, Settings] = {
        str(limit): {"trainer": {"sampling": {"max_tokens": limit}}} for limit in (8, 10, 16, 64)
    }
    real_arms: ClassVar[Mapping[str, Settings]] = {
        arm: {"trainer": {"sampling": {"max_tokens": limit}}}
        for arm, limit in (("8", 128), ("10", 256), ("16", 512), ("64", 2048))
    }
    claims: tuple[Claim, ...] = (
        Claim("001:2018", "A limit below the length of answers costs accuracy", "8", "16", -1),
        Claim("001:2018", "Does a limit far above it matter?", "64", "16"),
    )

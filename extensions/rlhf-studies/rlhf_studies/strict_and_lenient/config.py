from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common.ablation.config import Claim, Settings
from rlhf_studies.common.ablation.sums import SumsAblation

FORM = "eval/reward/part/format"


def verifier(**settings: Any) -> Settings:
    return {"reward": {"name": "verifier", "verifier": {"name": "gsm8k", **settings}}}


class StrictAndLenientConfig(SumsAblation):
    """GRPO under a verifier that reads the last number, one that wants "The answer is X.", and one that pays a tenth
    for the form."""

    name: str = "strict_and_lenient"
    arms: ClassVar[Mapping[str, Settings]] = {
        "last number": verifier(mode="last"),
        "strict": verifier(mode="strict"),
        "form pays": verifier(mode="last", format_weight=0.1),
    }
    also: ClassVar[tuple[str, ...]] = (*SumsAblation.also, FORM)
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "001:2010", "The strict form is rarer after training on the last number", "last number", "strict", -1, FORM
        ),
        Claim("001:104", "Pay for the form keeps it", "form pays", "last number", 1, FORM),
    )

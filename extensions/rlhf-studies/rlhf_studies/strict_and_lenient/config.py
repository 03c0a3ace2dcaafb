from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_studies.common.ablation.sums import ALSO, SumsAblation
from rlhf_study.ablation.config import Claim, Settings

FORM = "eval/reward/part/format"


def verifier(**settings: Any) -> Settings:
    return {"reward": {"name": "verifier", "verifier": {"name": "gsm8k", **settings}}}


class StrictAndLenientConfig(SumsAblation):
    """GRPO under a verifier that reads the last number, one that wants "The answer is X.", and one that pays a tenth
    for the form."""

    name: str = "strict_and_lenient"
    arms: Mapping[str, Settings] = {
        "last number": verifier(mode="last"),
        "strict": verifier(mode="strict"),
        "form pays": verifier(mode="last", format_weight=0.1),
    }
    also: tuple[str, ...] = (*ALSO, FORM)
    claims: tuple[Claim, ...] = (
        Claim(
            "001:2010", "The strict form is rarer after training on the last number", "last number", "strict", -1, FORM
        ),
        Claim("001:104", "Pay for the form keeps it", "form pays", "last number", 1, FORM),
    )

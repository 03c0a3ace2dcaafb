from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


def constant(tokens: int) -> Settings:
    return {"trainer": {"reduction": "constant", "reduction_constant": tokens}}


class DrGrpoConfig(SumsAblation):
    """GRPO against Dr. GRPO, whose loss is a sum over a constant C and whose advantages have no standard deviation."""

    name: str = "dr_grpo"
    arms: Mapping[str, Settings] = {
        "grpo": {},
        **{
            f"C {c}": {"loss": {"name": "dr_grpo"}, "advantage": {"name": "group_mean"}, **constant(c)}
            for c in (4, 16, 64)
        },
    }
    claims: tuple[Claim, ...] = (
        Claim("001:1643", "GRPO reaches more than Dr. GRPO at the same rate (.59, .25)", "grpo", "C 64", 1),
        Claim("001:1648", "A smaller C is a larger step: it reaches more", "C 4", "C 64", 1),
    )

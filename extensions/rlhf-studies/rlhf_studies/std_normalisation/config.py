from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class StdNormalisationConfig(SumsAblation):
    """GRPO with and without the group's standard deviation in the advantage."""

    name: str = "std_normalisation"
    arms: Mapping[str, Settings] = {
        "std": {"advantage": {"name": "group_norm"}},
        "no_std": {"advantage": {"name": "group_mean"}},
    }
    claims: tuple[Claim, ...] = (
        Claim("000:774", "Does use_std_normalization=True learn more than False?", "std", "no_std"),
        Claim("000:774", "Is its gradient larger?", "std", "no_std", metric="grad_norm"),
    )

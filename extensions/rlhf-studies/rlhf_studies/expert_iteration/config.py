from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings

EXPERT: Settings = {"loss": {"name": "expert_iteration"}, "advantage": {"name": "keep"}}


class ExpertIterationConfig(SumsAblation):
    """GRPO against cross-entropy on the right answers alone (expert iteration: Anthony et al. 2017), one and four
    epochs."""

    name: str = "expert_iteration"
    arms: Mapping[str, Settings] = {
        "grpo": {},
        "grpo, 4 epochs": {"trainer": {"epochs_per_rollout_batch": 4}},
        "expert iteration": EXPERT,
        "expert iteration, 4 epochs": {**EXPERT, "trainer": {"epochs_per_rollout_batch": 4}},
    }
    claims: tuple[Claim, ...] = (
        Claim("000:806", "Is the entropy of GRPO higher?", "grpo", "expert iteration", metric="entropy"),
        Claim("000:806", "Off policy too?", "grpo, 4 epochs", "expert iteration, 4 epochs", metric="entropy"),
        Claim("000:806", "Does GRPO learn more?", "grpo", "expert iteration"),
    )

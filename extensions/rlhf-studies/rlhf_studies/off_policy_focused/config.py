from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class OffPolicyFocusedConfig(SumsAblation):
    """On-policy GRPO against four and eight updates a step, three times the steps of `off_policy_broad`."""

    name: str = "off_policy_focused"
    arms: Mapping[str, Settings] = {
        f"{epochs} x {128 // size}": {
            "loss": {"name": "grpo_clip"},
            "trainer": {"epochs_per_rollout_batch": epochs, "train_batch_size": size, "micro_batch_size": 32},
        }
        for epochs, size in ((1, 128), (1, 32), (2, 32))
    }
    claims: tuple[Claim, ...] = (
        Claim("000:800", "Do eight updates a step reach more in the same steps?", "2 x 4", "1 x 1"),
        Claim("000:806", "Do they lower the entropy?", "2 x 4", "1 x 1", metric="entropy"),
    )
    steps: int = 48

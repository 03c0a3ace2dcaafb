from __future__ import annotations

from collections.abc import Mapping

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class OffPolicyBroadConfig(SumsAblation):
    """Epochs over a rollout batch and updates per epoch, few steps."""

    name: str = "off_policy_broad"
    arms: Mapping[str, Settings] = {
        f"{epochs} x {128 // size}": {
            "loss": {"name": "grpo_clip"},
            "trainer": {"epochs_per_rollout_batch": epochs, "train_batch_size": size, "micro_batch_size": 32},
        }
        for epochs in (1, 2, 4)
        for size in (128, 32)
    }
    claims: tuple[Claim, ...] = (
        Claim("000:800", "Does learning 16 times from a batch reach more in the same steps?", "4 x 4", "1 x 1"),
        Claim("000:806", "Does it lower the entropy?", "4 x 4", "1 x 1", metric="entropy"),
    )
    steps: int = 16

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.sums import SumsAblation
from rlhf_study.ablation.config import Claim, Settings


class ClippingConfig(SumsAblation):
    """GRPO-Clip with three ranges against the unclipped ratio, two epochs of four updates."""

    name: str = "clipping"
    shared: ClassVar[Settings] = {
        "trainer": {
            "train_batch_size": 32,
            "epochs_per_rollout_batch": 2,
            "micro_batch_size": 32,
        }
    }
    arms: Mapping[str, Settings] = {
        **{f"clip {c}": {"loss": {"name": "grpo_clip", "clip_range": c}} for c in (0.1, 0.2, 0.4)},
        "no clip": {"loss": {"name": "grpo_no_clip"}},
    }
    claims: tuple[Claim, ...] = (
        Claim("000:814", "Does the unclipped loss learn less?", "no clip", "clip 0.2"),
        Claim("000:814", "Is its gradient larger?", "no clip", "clip 0.2", metric="grad_norm"),
    )

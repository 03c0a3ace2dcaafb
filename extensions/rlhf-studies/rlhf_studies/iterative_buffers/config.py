from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rlhf_studies.common.ablation.assistants import ALSO, AssistantAblation
from rlhf_study.ablation.config import Claim, Settings

OLD = "iteration/old_margin"
ITERATIVE: Settings = {
    "name": "iterative_dpo",
    "rollout_batch_size": 256,
    "group_size": 8,
    "updates": 8,
    "eval_every": 1,
}


class IterativeBuffersConfig(AssistantAblation):
    """Iterative DPO with three buffers, equal updates an iteration."""

    name: str = "iterative_buffers"
    frontier: ClassVar[tuple[str, str] | None] = ("kl", "eval/win_rate")
    shared: ClassVar[Settings] = {"trainer": ITERATIVE}
    arms: Mapping[str, Settings] = {
        buffer: {"trainer": {"buffer": buffer}} for buffer in ("current", "rolling", "full")
    }
    claims: tuple[Claim, ...] = (
        Claim("002:390", "The full buffer degrades against the rolling one", "full", "rolling", -1),
        Claim("002:390", "The full buffer degrades against fresh pairs", "full", "current", -1),
        Claim("002:134", "Old pairs hold the policy near its start", "full", "current", -1, "kl"),
        Claim(
            "002:134", "Does it tell the oldest pairs of a full buffer further apart?", "full", "rolling", metric=OLD
        ),
    )
    also: tuple[str, ...] = (*ALSO, "eval/win_rate", OLD)
    steps: int = 6

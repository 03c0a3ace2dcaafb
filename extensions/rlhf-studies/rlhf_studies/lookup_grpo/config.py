from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_study.config import StudyConfig

Arm = Literal["outcome", "turn", "shuffled", "unmasked"]


class LookupGrpoConfig(StudyConfig):
    """What does multi-turn GRPO gain on `lookup`? `rlhf train --algo grpo --env lookup` once per arm and seed:

    - ``outcome``: the defaults, one score for the whole episode
    - ``turn``: advantage `turn`; each result that the plan leads to pays besides (`environment.step_reward`)
    - ``shuffled``: scores given to other episodes of the batch, so that nothing can be learned
    - ``unmasked``: results of tools left in the loss, as if the policy had written them

    Held-out success is the share of right answers to questions about people that no training question is about, one
    episode each at temperature 1.
    """

    name: str = "lookup_grpo"
    component: ClassVar[str] = "rlhf_studies.lookup_grpo.run:LookupGrpo"
    smoke: ClassVar[Mapping[str, Any]] = {
        "arms": ("turn", "unmasked"),
        "heldout": 4,
        "settings": ("trainer.steps=1", "trainer.rollout_batch_size=8", "trainer.group_size=4"),
    }

    arms: tuple[Arm, ...] = ("outcome", "turn", "shuffled", "unmasked")
    heldout: int = Field(default=400, ge=1)
    """Questions; of each number of calls as many."""
    settings: tuple[str, ...] = ()
    """``a.b=c``, for every run."""

"""A trace of some steps and completions, and what rank 0 is sent of completions: what metrics need, and no token."""

from __future__ import annotations

import copy
import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.rollouts import Rollout
from rlhf_plugin_schedule.dynamic_collector import DynamicCollector
from rlhf_plugin_schedule.own_groups import estimate_own_groups

Group = Any
"""``PromptGroup``."""


@dataclass(frozen=True, slots=True, eq=False)
class TokensElsewhere:
    """Stands for the ids of a completion that another rank has: their number, and whether two are the same."""

    count: int
    digest: bytes
    hashed: int
    """The hash of the ids, which Python makes alike in every process."""

    @classmethod
    def of(cls, ids: tuple[int, ...]) -> TokensElsewhere:
        """Those of a completion."""
        return cls(len(ids), digest_of(ids), hash(ids))

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        """Equal to the ids themselves, too: those of groups that are set aside are there."""
        if isinstance(other, tuple):
            return len(other) == self.count and digest_of(other) == self.digest
        return isinstance(other, TokensElsewhere) and other.digest == self.digest

    def __hash__(self) -> int:
        return self.hashed


def digest_of(ids: tuple[int, ...]) -> bytes:
    """16 bytes of a completion's token ids."""
    return hashlib.blake2b(array("q", ids), digest_size=16).digest()


class SampledTrace:
    """Chooses what is traced (``trainer.trace_every``, ``trainer.trace_completions``), and what rank 0 is sent.

    Args:
        config: how often, and how much.
        estimator: the advantage; the class of its ``estimate`` says with ``reads_tokens = False`` that it takes scores
            alone, with ``by_group = True`` that it takes each group alone, on the rank that has it. No token is sent
            for either.
        several: whether there are other ranks to send from.
        critic: whether the estimator reads a critic's values.
    """

    def __init__(self, config: OnlineTrainerConfig, estimator: Any, several: bool, critic: bool = False) -> None:
        self.config, self.several = config, several
        owner = next((c for c in type(estimator).__mro__ if "estimate" in vars(c)), object)
        said = vars(owner)  # a subclass may read what its base does not
        by_rank_0 = critic or hasattr(estimator, "state_dict")  # it has all values, and the one state
        self.by_group = several and not by_rank_0 and bool(said.get("by_group", False))
        self.reads_tokens = not self.by_group and bool(said.get("reads_tokens", True))

    def groups(self, step: int, groups: Sequence[Group]) -> Sequence[Group]:
        """Those of a step that are traced, the first ones."""
        return groups[: self.count(step, [group.group_size for group in groups])]

    def count(self, step: int, sizes: Sequence[int]) -> int:
        """How many groups of these sizes a step traces."""
        every, most = self.config.trace_every, self.config.trace_completions
        if not every or step % every:
            return 0
        return len(sizes) if most is None else sum(end <= most for end in accumulate(sizes))

    def outline(self, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        """What rank 0 is sent of this rank's completions. Episodes of several turns are sent whole."""
        if self.reads_tokens or not self.several:
            return rollouts
        return [r if r.turns or r.mask_T is not None else outline(r) for r in rollouts]


def outline(rollout: Rollout) -> Rollout:
    """A completion without text and tokens; it gives the same metrics."""
    return _changed(
        rollout,
        completion_ids=TokensElsewhere.of(rollout.completion_ids),
        logprobs_T=np.asarray([rollout.logprobs_T.sum()], np.float32),
        prompt_ids=(),
        support=None,
        text="",
        info={},
        segments=(),
        media=(),
    )


def sampled(config: OnlineTrainerConfig, parts: Any) -> Callable[[int, Sequence[Group]], Sequence[Group]]:
    """Let the advantage's stage send what metrics need, and a collector that sets groups aside trace as many of them as
    the step; returns what chooses the groups of a step."""
    step, collector = parts.advantages, parts.source.collector
    critic = step.module.critic is not None
    trace = SampledTrace(config, step.estimator.estimator, step.rank_zero.ranks.world_size > 1, critic)
    step.outline = trace.outline
    if trace.by_group:
        step.estimate = partial(estimate_own_groups, step)
    if isinstance(collector, DynamicCollector):
        collector.traced = trace.count
    return trace.groups


def _changed(rollout: Rollout, **fields: Any) -> Rollout:
    """A copy that its own checks have not seen: it has no token to compare."""
    changed = copy.copy(rollout)
    for name, value in fields.items():
        object.__setattr__(changed, name, value)
    return changed

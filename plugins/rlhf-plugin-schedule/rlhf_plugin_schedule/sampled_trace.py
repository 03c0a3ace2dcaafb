"""A trace of some steps and completions: of the others rank 0 is sent what metrics need, and no token."""

from __future__ import annotations

import copy
import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.rollouts import Rollout
from rlhf_plugin_schedule.dynamic_collector import DynamicCollector

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
        """Equal to the ids themselves, too: those of traced completions are there."""
        if isinstance(other, tuple):
            return len(other) == self.count and digest_of(other) == self.digest
        return isinstance(other, TokensElsewhere) and other.digest == self.digest

    def __hash__(self) -> int:
        return self.hashed


def digest_of(ids: tuple[int, ...]) -> bytes:
    """16 bytes of a completion's token ids."""
    return hashlib.blake2b(array("q", ids), digest_size=16).digest()


class SampledTrace:
    """Chooses what is traced (``trainer.trace_every``, ``trainer.trace_completions``), and what is sent for it.

    Args:
        config: how often, how much, and of how many prompts the tokens.
        estimator: the advantage; with ``reads_tokens = False`` in the class of its ``estimate`` it takes scores alone,
            and no token is sent to it.
        several: whether there are other ranks to send from.
    """

    def __init__(self, config: OnlineTrainerConfig, estimator: Any, several: bool) -> None:
        self.config, self.several = config, several
        owner = next((c for c in type(estimator).__mro__ if "estimate" in vars(c)), object)
        self.reads_tokens = bool(vars(owner).get("reads_tokens", True))  # a subclass may read what its base does not
        self._texts: frozenset[str] = frozenset()
        self._tokens: frozenset[str] = frozenset()

    def groups(self, step: int, groups: Sequence[Group]) -> Sequence[Group]:
        """Those of a step that are traced, the first ones; :meth:`outline` goes by them until the next call."""
        traced = groups[: self.count(step, [group.group_size for group in groups])]
        self._texts = frozenset(group.prompt.id for group in traced)
        self._tokens = frozenset(group.prompt.id for group in traced[: self.config.trace_prompts])
        return traced

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
        return [r if r.turns or r.mask_T is not None else self._outline(r) for r in rollouts]

    def _outline(self, rollout: Rollout) -> Rollout:
        ids = rollout.completion_ids
        if rollout.prompt_id in self._tokens:
            return rollout
        chosen_sum = np.asarray([rollout.logprobs_T.sum()], np.float32)
        return _changed(
            rollout,
            completion_ids=TokensElsewhere.of(ids),
            prompt_ids=(),
            logprobs_T=chosen_sum,
            support=None,
            **({} if rollout.prompt_id in self._texts else {"text": "", "info": {}, "segments": (), "media": ()}),
        )


def sampled(config: OnlineTrainerConfig, parts: Any) -> Callable[[int, Sequence[Group]], Sequence[Group]]:
    """Let the advantage's stage send what a sampled trace needs, and a collector that sets groups aside trace as many
    of them; returns what chooses the groups of a step."""
    step, collector = parts.advantages, parts.source.collector
    trace = SampledTrace(config, step.estimator.estimator, step.rank_zero.ranks.world_size > 1)
    step.outline = trace.outline
    if isinstance(collector, DynamicCollector):
        collector.traced = trace.count
    return trace.groups


def _changed(rollout: Rollout, **fields: Any) -> Rollout:
    """A copy that its own checks have not seen: it has no token to compare."""
    changed = copy.copy(rollout)
    for name, value in fields.items():
        object.__setattr__(changed, name, value)
    return changed

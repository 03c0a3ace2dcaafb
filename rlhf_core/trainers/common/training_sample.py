"""One completion on its way into the foundry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from rlhf_core.types import FinishReason, PromptGroup, Rollout

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A completion with everything its loss needs; arrays have shape ``[T]``."""

    name: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask_T: npt.NDArray[np.bool_]
    advantages_T: Floats
    behaviour_T: Floats | None = None
    old_T: Floats | None = None
    ref_T: Floats | None = None
    old_values_T: Floats | None = None
    returns_T: Floats | None = None

    @property
    def tokens(self) -> int:
        """Completion tokens that count."""
        return int(self.mask_T.sum())

    @property
    def flat(self) -> bool:
        """True if every advantage is zero: no policy gradient comes from it."""
        return not np.any(self.advantages_T)

    def with_(self, **changes: Floats) -> TrainingSample:
        """Return a copy with the given arrays."""
        return replace(self, **changes)


def make_item(rollout: Rollout, advantage: float | Floats, mask_truncated: bool) -> TrainingSample:
    """Build the item of one rollout; a scalar advantage is spread over its tokens."""
    count = len(rollout.completion_ids)
    mask = np.ones(count, bool) if rollout.mask_T is None else rollout.mask_T.copy()
    if mask_truncated and rollout.finish_reason is FinishReason.LENGTH:
        mask[:] = False
    values = np.broadcast_to(np.asarray(advantage, np.float32), (count,)).copy()
    return TrainingSample(
        f"{rollout.prompt_id}#{rollout.group_index}",
        rollout.prompt_ids,
        rollout.completion_ids,
        mask,
        values,
        rollout.logprobs_T,
    )


def by_group(items: Sequence[TrainingSample | None], groups: Sequence[PromptGroup]) -> list[list[TrainingSample]]:
    """Cut items that lie group by group; a completion without a score (None) is left out of its group."""
    rest = iter(items)
    return [[i for i in islice(rest, g.group_size) if i is not None] for g in groups]


def regrouped(items: Sequence[TrainingSample], like: Sequence[Sequence[TrainingSample]]) -> list[list[TrainingSample]]:
    """Cut items that lie group by group as ``like`` is cut."""
    rest = iter(items)
    return [[next(rest) for _ in g] for g in like]

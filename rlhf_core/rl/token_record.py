"""What an update saw of each token, kept for the completions whose tokens the trace holds.

Suffix: ``_T`` completion tokens of one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from rlhf_core.distributed.exchange import RankZero
from rlhf_core.models.layers.read_together import read_together
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.types.batches import LossOutput, TokenBatch
from rlhf_core.types.rollouts import PromptGroup

if TYPE_CHECKING:
    from rlhf_core.training.training_sample import TrainingSample

DIGITS = 5
"""Decimals that are kept: a logprob's rounding in float32 is of that size."""


class _Kept(NamedTuple):
    """A completion, by its place in the grids of a micro-batch."""

    grids: Mapping[str, torch.Tensor]
    """Shapes ``[B, T]``, shared by all completions of the micro-batch."""
    place: int
    tokens: int
    has_old: bool


class TokenRecorder:
    """Observes updates (``observe`` of :meth:`rlhf_core.training.learner.Learner.update`).

    Nothing is computed for it: the values are those of the batch that the loss consumed, copied as the update's
    forward gave them. They stay on their device until they are asked for, so that no micro-batch waits for them. Of
    several updates on one completion the last one's stay.

    Args:
        groups: of the step, of all ranks.
        full: completions of so many first groups are recorded; those of a prompt drawn twice are not, since a name
            tells them not apart.
    """

    def __init__(self, groups: Sequence[PromptGroup], full: int) -> None:
        kept = sum(group.group_size for group in groups[:full])
        names = [f"{group.prompt.id}#{n}" for group in groups for n in range(group.group_size)]
        count = Counter(names)
        self.names = {name for name in names[:kept] if count[name] == 1}
        self._kept: dict[str, _Kept] = {}

    def __call__(self, samples: Sequence[TrainingSample], batch: Any, out: LossOutput) -> None:
        """Copy the grids of a micro-batch that has recorded completions."""
        if not isinstance(batch, TokenBatch) or self.names.isdisjoint(sample.name for sample in samples):
            return
        grids = _grids(batch)
        for n, sample in enumerate(samples):
            if sample.name in self.names:
                self._kept[sample.name] = _Kept(grids, n, len(sample.completion_ids), sample.old_T is not None)

    @property
    def rows(self) -> dict[str, dict[str, list[float]]]:
        """What was recorded on this rank, by name."""
        grids = {id(grid): grid for kept in self._kept.values() for grid in kept.grids.values()}
        read = dict(zip(grids, read_together(list(grids.values()))))
        return {
            name: {
                key: np.round(read[id(grid)][kept.place, : kept.tokens].numpy(), DIGITS).tolist()
                for key, grid in kept.grids.items()
                if key != "old_logprobs" or kept.has_old
            }
            for name, kept in self._kept.items()
        }

    def of_all_ranks(self, strategy: Strategy) -> Mapping[str, Mapping[str, list[float]]]:
        """Rows by name, of all ranks, on rank 0; nothing on the others. All ranks call it together."""
        return {name: row for rank in RankZero(strategy).gather(self.rows) for name, row in rank.items()}


def _grids(batch: TokenBatch) -> dict[str, torch.Tensor]:
    grids: dict[str, torch.Tensor | None] = {
        "trainer_logprobs": batch.logprobs_BT,
        "old_logprobs": batch.old_logprobs_BT,
        "ref_logprobs": batch.ref_logprobs_BT,
        "entropies": batch.entropy_BT,
        "values": batch.old_values_BT,
        "returns": batch.returns_BT,
    }
    return {key: grid.detach().clone() for key, grid in grids.items() if grid is not None}

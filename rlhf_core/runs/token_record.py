"""What an update saw of each token, kept for the completions whose tokens the trace holds.

Suffix: ``_T`` completion tokens of one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlhf_core.batches import LossOutput, TokenBatch
from rlhf_core.protocols import Strategy
from rlhf_core.strategy.exchange import gather_on_first
from rlhf_core.types import PromptGroup

if TYPE_CHECKING:
    from rlhf_core.trainers.common.training_sample import TrainingSample

DIGITS = 5
"""Decimals that are kept: a logprob's rounding in float32 is of that size."""


class TokenRecorder:
    """Observes updates (``observe`` of :meth:`rlhf_core.trainers.common.learner.Learner.update`).

    Nothing is computed for it: the values are those of the batch that the loss consumed, copied as the update's
    forward gave them. Of several updates on one completion the last one's stay.

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
        self.rows: dict[str, dict[str, list[float]]] = {}

    def __call__(self, samples: Sequence[TrainingSample], batch: Any, out: LossOutput) -> None:
        """Copy the rows of the recorded completions."""
        for n, sample in enumerate(samples if isinstance(batch, TokenBatch) else ()):
            if sample.name in self.names:
                self.rows[sample.name] = _values(batch, n, len(sample.completion_ids), sample.old_T is not None)

    def of_all_ranks(self, strategy: Strategy) -> Mapping[str, Mapping[str, list[float]]]:
        """Rows by name, of all ranks, on rank 0; nothing on the others. All ranks call it together."""
        return {name: row for rank in gather_on_first(strategy, self.rows) for name, row in rank.items()}


def _values(batch: TokenBatch, n: int, count: int, has_old: bool) -> dict[str, list[float]]:
    grids: dict[str, torch.Tensor | None] = {
        "trainer_logprobs": batch.logprobs_BT,
        "old_logprobs": batch.old_logprobs_BT if has_old else None,
        "ref_logprobs": batch.ref_logprobs_BT,
        "entropies": batch.entropy_BT,
        "values": batch.old_values_BT,
        "returns": batch.returns_BT,
    }
    return {key: _rounded(grid[n, :count]) for key, grid in grids.items() if grid is not None}


def _rounded(values_T: torch.Tensor) -> list[float]:
    return np.round(values_T.detach().double().cpu().numpy(), DIGITS).tolist()

"""What an offline step leaves in the trace: every example's loss and margin, and the texts of the first few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.batches import LossOutput, PairBatch

if TYPE_CHECKING:
    from rlhf_core.protocols import Strategy

Row = dict[str, Any]


class ExampleRecorder:
    """Collects what each example of an update costs, by name; of several heads per example nothing."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def __call__(self, samples: Sequence[Any], batch: Any, out: LossOutput) -> None:
        """See ``observe`` of :meth:`rlhf_core.trainers.common.learner.Learner.update`."""
        rows = figures(batch, out.loss.detach())
        if len(rows) == len(samples):
            self.rows.update(zip((s.name for s in samples), rows))


def figures(batch: Any, loss: torch.Tensor) -> list[Row]:
    """One row per sequence or pair of a micro-batch.

    Args:
        batch: what the loss consumed.
        loss: unreduced, ``[B, T]`` (its mean over the tokens that count is kept) or ``[B]``.

    Returns:
        ``loss``, and of pairs also ``chosen``, ``rejected`` and ``margin`` (their difference).
    """
    if loss.ndim == 2:
        mask_BT = batch.mask_BT
        return [{"loss": v} for v in ((loss * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)).tolist()]
    rows: list[Row] = [{"loss": v} for v in loss.tolist()]
    if isinstance(batch, PairBatch):
        for row, chosen, rejected in zip(rows, batch.chosen_B.tolist(), batch.rejected_B.tolist()):
            row |= {"chosen": chosen, "rejected": rejected, "margin": chosen - rejected}
    return rows


def example_rows(
    task: Any, batch: Sequence[Any], recorded: Mapping[str, Row], strategy: Strategy, texts: int
) -> list[Row]:
    """Rows of one step's examples, in the order of the batch.

    Args:
        task: its optional ``texts(item)`` gives the texts of an example by name.
        batch: the examples of all ranks.
        recorded: what this rank's examples cost.
        strategy: collects those of the others.
        texts: how many examples bring their texts.
    """
    costs = {name: row for rank in strategy.gather_objects(dict(recorded)) for name, row in rank.items()}
    describe = getattr(task, "texts", None)
    rows: list[Row] = []
    for n, item in enumerate(batch):
        shown: Mapping[str, str] = describe(item) if describe is not None and n < texts else {}
        rows.append({"id": item.name, "tokens": item.tokens, **costs.get(item.name, {}), **shown})
    return rows

"""What an offline step leaves in the trace: every example's loss and margin, and the texts of the first few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.models.layers.read_together import read_together
from rlhf_core.types.batches import LossOutput, PairBatch

if TYPE_CHECKING:
    from rlhf_core.plugins.strategy_protocols import Strategy

Row = dict[str, Any]


class ExampleRecorder:
    """Keeps what each example of an update costs, by name; of several heads per example nothing.

    The values stay on their device until they are asked for, so that no micro-batch waits for them.
    """

    def __init__(self) -> None:
        self._names: list[list[str]] = []
        self._figures: list[dict[str, torch.Tensor]] = []

    def __call__(self, samples: Sequence[Any], batch: Any, out: LossOutput) -> None:
        """See ``observe`` of :meth:`rlhf_core.training.learner.Learner.update`."""
        if len(out.loss) == len(samples):
            self._names.append([sample.name for sample in samples])
            self._figures.append(figures(batch, out.loss.detach()))

    @property
    def rows(self) -> dict[str, Row]:
        """``loss`` of each example, and of pairs also ``chosen``, ``rejected`` and ``margin`` (their difference)."""
        numbers = iter(read_together([value_B for micro in self._figures for value_B in micro.values()]))
        rows: dict[str, Row] = {}
        for names, micro in zip(self._names, self._figures):
            columns = {key: next(numbers).tolist() for key in micro}
            if "chosen" in columns:
                columns["margin"] = [c - r for c, r in zip(columns["chosen"], columns["rejected"])]
            rows |= {name: {key: column[n] for key, column in columns.items()} for n, name in enumerate(names)}
        return rows


def figures(batch: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is kept of each sequence or pair of a micro-batch, shapes ``[B]``, on its device.

    Args:
        batch: what the loss consumed.
        loss: unreduced, ``[B, T]`` (its mean over the tokens that count is kept) or ``[B]``.

    Returns:
        ``loss``, and of pairs also ``chosen`` and ``rejected``.
    """
    if loss.ndim == 2:
        mask_BT = batch.mask_BT
        return {"loss": (loss * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)}
    scores = {"chosen": batch.chosen_B, "rejected": batch.rejected_B} if isinstance(batch, PairBatch) else {}
    return {key: value_B.detach().clone() for key, value_B in {"loss": loss, **scores}.items()}


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

"""What only the whole batch knows: how much a supervised token weighs, and which pair has which rank (AOT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.api import LossOutput, PairBatch
from rlhf_core.sdk import Learner, micro_batches_of_size
from rlhf_plugin_dpo.items import PairItem, sides_of
from rlhf_plugin_dpo.pair_loss import TIE


def with_scales(items: Sequence[PairItem], beta_scale: float | None, sft: bool, conversation: bool) -> list[PairItem]:
    """Give every pair the step's beta and the weight of its supervised tokens."""
    tokens = sum(i.chosen.counted + (len(i.chosen.prompt_ids) - 1 if conversation else 0) for i in items)
    scale = len(items) / tokens if sft else 0.0
    return [replace(i, beta_scale=beta_scale, nll_scale=scale) for i in items]


def reference_by_rank(items: Sequence[PairItem], chosen: Sequence[float], rejected: Sequence[float]) -> list[PairItem]:
    """Every pair gets the reference logprobs of the pair whose reference difference has the same rank (AOT).

    Args:
        items: the whole batch; without reference logprobs it is returned as it is.
        chosen: summed logprobs under the policy, one per pair.
        rejected: likewise.
    """
    if items[0].chosen.ref is None:
        return list(items)
    by_policy = np.argsort(np.asarray(chosen) - np.asarray(rejected), kind="stable")
    refs = [(float(i.chosen.ref or 0.0), float(i.rejected.ref or 0.0)) for i in items]
    by_reference = np.argsort([ref[0] - ref[1] for ref in refs], kind="stable")
    matched = list(items)
    for place, partner in zip(by_policy, by_reference):
        item = items[place]
        matched[place] = replace(item.with_refs(*refs[partner]), right=ahead(item, chosen, rejected, place))
    return matched


def sides_by_rank(items: Sequence[PairItem], chosen: Sequence[float], rejected: Sequence[float]) -> list[PairItem]:
    """The chosen side of every pair meets the rejected side whose log ratio has the same rank (unpaired AOT).

    Arguments as of :func:`reference_by_rank`.
    """
    by_chosen = np.argsort([c - (i.chosen.ref or 0.0) for c, i in zip(chosen, items)], kind="stable")
    by_rejected = np.argsort([r - (i.rejected.ref or 0.0) for r, i in zip(rejected, items)], kind="stable")
    matched = list(items)
    for place, partner in zip(by_chosen, by_rejected):
        right = ahead(items[place], chosen, rejected, place)
        matched[place] = replace(items[place], rejected=items[partner].rejected, right=right)
    return matched


def ahead(item: PairItem, chosen: Sequence[float], rejected: Sequence[float], at: int) -> float:
    """Whether a pair's own chosen side is ahead of its own rejected one; 0.5 where they tie."""
    gap = (chosen[at] - (item.chosen.ref or 0.0)) - (rejected[at] - (item.rejected.ref or 0.0))
    return 0.5 if abs(gap) < TIE else float(gap > 0)


PAIRINGS = {"reference_by_rank": reference_by_rank, "sides_by_rank": sides_by_rank}


def prepare(
    items: Sequence[PairItem], settings: Any, loss: Any, beta_scale: float | None, learner: Learner
) -> list[PairItem]:
    """A whole batch as its loss is to see it; all ranks call it with the same batch.

    Args:
        items: pairs of all ranks.
        settings: the trainer's ``sft`` and ``micro_batch_size``.
        loss: configuration of the loss.
        beta_scale: see :func:`rlhf_plugin_dpo.schedule.beta_scale`.
        learner: its module is the pair module.
    """
    sft = settings.sft
    scaled = with_scales(items, beta_scale, sft.weight > 0, sft.weight > 0 and sft.on == "conversation")
    pairing = PAIRINGS.get(getattr(loss, "pairing", "pairs"))
    return scaled if pairing is None else pairing(scaled, *policy_sums(scaled, learner, settings.micro_batch_size))


def policy_sums(items: Sequence[PairItem], learner: Learner, micro_batch_size: int) -> tuple[list[float], list[float]]:
    """Summed logprobs of chosen and rejected under the policy as it is, of the whole batch on every rank."""
    strategy, world = learner.strategy, learner.strategy.world_size
    cut = micro_batches_of_size(2 * micro_batch_size)
    rank_sides = sides_of(items[strategy.rank :: world])
    sums = learner.no_grad.rows(rank_sides, cut, lambda module, sides: module.side_sums(sides))
    shards = strategy.gather_objects(sums)
    rows = [shards[n % world][2 * (n // world) : 2 * (n // world) + 2] for n in range(len(items))]
    return [r[0] for r in rows], [r[1] for r in rows]


class SupervisedTerm:
    """Adds ``weight`` times the supervised term to any pair loss."""

    def __init__(self, loss: Any, weight: float) -> None:
        self.loss, self.weight = loss, weight

    def __call__(self, batch: PairBatch) -> LossOutput:
        """Return the loss with its term; ``batch.nll_B`` must be there. Metric ``nll`` is in nats per token."""
        out = self.loss(batch)
        assert batch.nll_B is not None, "the supervised term needs the chosen texts' log-likelihood"
        nll = {"nll": (batch.nll_B.detach().sum(), float(len(batch.nll_B)))}
        return LossOutput(out.loss + self.weight * batch.nll_B, {**out.metrics, **nll})

"""What only the whole batch knows: how much a supervised token weighs, and which pair has which rank (AOT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.losses import LossOutput, PairBatch
from rlhf_core.training import Learner
from rlhf_plugin_dpo.items import PairItem, sides_of
from rlhf_plugin_dpo.pair_loss import TIE
from rlhf_plugin_dpo.ranks import undealt


def with_scales(items: Sequence[PairItem], beta_scale: float | None, sft: bool, conversation: bool) -> list[PairItem]:
    """Give every pair the step's beta and the weight of its supervised tokens."""
    tokens = sum(i.chosen.counted + (len(i.chosen.prompt_ids) - 1 if conversation else 0) for i in items)
    scale = len(items) / tokens if sft and items else 0.0
    return [replace(i, beta_scale=beta_scale, nll_scale=scale) for i in items]


def reference_by_rank(items: Sequence[PairItem], chosen: Sequence[float], rejected: Sequence[float]) -> list[PairItem]:
    """Every pair gets the reference logprobs of the pair whose reference difference has the same rank (AOT)."""
    if items[0].chosen.ref is None:
        return list(items)
    by_policy = np.argsort(np.asarray(chosen) - np.asarray(rejected), kind="stable")
    refs = [(float(i.chosen.ref or 0.0), float(i.rejected.ref or 0.0)) for i in items]
    by_reference = np.argsort([ref[0] - ref[1] for ref in refs], kind="stable")
    matched = list(items)
    for row, partner in zip(by_policy, by_reference):
        item = items[row]
        matched[row] = replace(item.with_refs(*refs[partner]), right=ahead(item, chosen, rejected, row))
    return matched


def sides_by_rank(items: Sequence[PairItem], chosen: Sequence[float], rejected: Sequence[float]) -> list[PairItem]:
    """The chosen side of every pair meets the rejected side whose log ratio has the same rank (unpaired AOT)."""
    by_chosen = np.argsort([c - (i.chosen.ref or 0.0) for c, i in zip(chosen, items)], kind="stable")
    by_rejected = np.argsort([r - (i.rejected.ref or 0.0) for r, i in zip(rejected, items)], kind="stable")
    matched = list(items)
    for row, partner in zip(by_chosen, by_rejected):
        right = ahead(items[row], chosen, rejected, row)
        matched[row] = replace(items[row], rejected=items[partner].rejected, right=right)
    return matched


def ahead(item: PairItem, chosen: Sequence[float], rejected: Sequence[float], at: int) -> float:
    """Whether a pair's own chosen side is ahead of its own rejected one; 0.5 where they tie."""
    gap = (chosen[at] - (item.chosen.ref or 0.0)) - (rejected[at] - (item.rejected.ref or 0.0))
    return 0.5 if abs(gap) < TIE else float(gap > 0)


PAIRINGS = {"reference_by_rank": reference_by_rank, "sides_by_rank": sides_by_rank}


def prepare(
    items: Sequence[PairItem], settings: Any, loss: Any, beta_scale: float | None, learner: Learner
) -> list[PairItem]:
    """A whole batch as its loss is to see it; all ranks call it with the same batch."""
    scaled = scaled_by(items, settings, beta_scale)
    pairing = PAIRINGS.get(getattr(loss, "pairing", "pairs"))
    if pairing is None:
        return scaled
    strategy = learner.strategy
    sums = policy_sums(scaled[strategy.rank :: strategy.world_size], learner, settings.micro_batch_size)
    return pairing(scaled, *sides_apart(strategy.gather_objects(sums)))


def scaled_by(items: Sequence[PairItem], settings: Any, beta_scale: float | None) -> list[PairItem]:
    sft = settings.sft
    return with_scales(items, beta_scale, sft.weight > 0, sft.weight > 0 and sft.on == "conversation")


def policy_sums(items: Sequence[PairItem], learner: Learner, micro_batch_size: int) -> list[tuple[float, float]]:
    """Summed logprobs (chosen, rejected) of this rank's pairs under the policy as it is; all ranks call it together."""
    sums = learner.no_grad.rows(sides_of(items), 2 * micro_batch_size, lambda module, sides: module.side_sums(sides))
    return list(zip(sums[::2], sums[1::2], strict=True))


def sides_apart(shards: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """Sums of chosen and of rejected sides of a whole batch, from every rank's pairs."""
    rows = undealt(shards)
    return [chosen for chosen, _ in rows], [rejected for _, rejected in rows]


class SupervisedTerm:
    """Adds ``weight`` times the supervised term to any pair loss."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, out: LossOutput, batch: PairBatch) -> LossOutput:
        """Return the loss with its term; ``batch.nll_B`` must be there. Metric ``nll`` is in nats per token."""
        assert batch.nll_B is not None, "the supervised term needs the chosen texts' log-likelihood"
        nll = {"nll": (batch.nll_B.detach().sum(), float(len(batch.nll_B)))}
        return LossOutput(out.loss + self.weight * batch.nll_B, {**out.metrics, **nll})

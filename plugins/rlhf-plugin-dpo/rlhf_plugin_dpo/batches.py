"""What only the whole batch knows: how much a supervised token weighs, and who has which rank (AOT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_plugin_dpo.items import PairItem


def with_scales(items: Sequence[PairItem], beta_scale: float | None, sft: bool, conversation: bool) -> list[PairItem]:
    """Give every pair the step's beta and the weight of its supervised tokens."""
    tokens = sum(len(i.chosen.completion_ids) + (len(i.chosen.prompt_ids) - 1 if conversation else 0) for i in items)
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
    ours = np.argsort(np.asarray(chosen) - np.asarray(rejected), kind="stable")
    refs = [(float(i.chosen.ref or 0.0), float(i.rejected.ref or 0.0)) for i in items]
    theirs = np.argsort([ref[0] - ref[1] for ref in refs], kind="stable")
    found = list(items)
    for mine, partner in zip(ours, theirs):
        found[mine] = items[mine].with_refs(*refs[partner])
    return found


def sides_by_rank(items: Sequence[PairItem], chosen: Sequence[float], rejected: Sequence[float]) -> list[PairItem]:
    """The chosen side of every pair meets the rejected side whose log ratio has the same rank (unpaired AOT).

    Arguments as of :func:`reference_by_rank`.
    """
    ours = np.argsort([c - (i.chosen.ref or 0.0) for c, i in zip(chosen, items)], kind="stable")
    theirs = np.argsort([r - (i.rejected.ref or 0.0) for r, i in zip(rejected, items)], kind="stable")
    found = list(items)
    for mine, partner in zip(ours, theirs):
        found[mine] = replace(items[mine], rejected=items[partner].rejected)
    return found


PAIRINGS = {"reference_by_rank": reference_by_rank, "sides_by_rank": sides_by_rank}

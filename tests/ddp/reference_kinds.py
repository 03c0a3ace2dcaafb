"""Logprobs of one reference policy, kept in every way: whole, sharded, as an adapter that is off, computed beforehand.

Imported by the script that compares FSDP with one process. Micro-batches are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matrix import items, policy

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.reference import Reference
from rlhf_core.training.config import ReferencePlacement
from rlhf_core.training.forward import PLAIN
from rlhf_core.training.micro_batches import NoGradForward, micro_batches_of_size
from rlhf_core.training.policy_module import LOGPROBS, PolicyModule, ReferencePolicy
from rlhf_plugin_dpo.items import Side
from rlhf_plugin_dpo.reference import side_logprobs
from rlhf_plugin_schedule.reference import placed

CUT = micro_batches_of_size(2)


def beside(strategy: Any, lora: bool, share: Sequence[Any], kind: Any = None) -> tuple[list[Any], list[Any]]:
    """Logprobs of the reference beside a policy that has moved on, and its own; ``kind`` says where it lies."""
    loaded = policy(frozenset({"lora"} if lora else ()))
    reference = Reference.of(loaded.model)
    prepared = strategy.prepare(PolicyModule(loaded.model, 1.0, PLAIN))
    make = ReferencePolicy if kind is None else placed(ReferencePlacement(kind=kind))
    kept = make(reference, loaded.model, prepared, strategy, 0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.1)
    rows = kept.logprobs(share, strategy.unwrap(prepared), CUT)
    with strategy.gathered(prepared):
        forward = NoGradForward(LocalStrategy(), strategy.unwrap(prepared))
        own = forward.rows(share, CUT, lambda module, micro: module.measure(micro, LOGPROBS))
        return rows, [row.logprobs_T for row in own]


def beforehand(strategy: Any, lora: bool, share: Sequence[Any]) -> list[float]:
    """Mean logprob of a token, computed before the policy is trained; on shards each rank reads its part."""
    adapter = LoraSettings(r=4) if lora else None
    loaded = load_policy(ModelConfig(path="pocket", lora=adapter), weights=not strategy.sharded)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_" in name:
                assert not parameter.is_meta
                parameter.fill_(0.05)  # it counts unless it is off
    sides = [Side(r.prompt_ids, r.completion_ids, len(r.completion_ids)) for r in share]
    sums = side_logprobs(loaded.model, sides, strategy, 1.0, PLAIN.as_arguments, 1)
    return [total / len(side.completion_ids) for total, side in zip(sums, sides)]


def reference_kinds(make: Callable[[], Any]) -> dict[str, float]:
    """Largest distance from the whole reference in one process; how far the policies moved from it.

    Args:
        make: the strategy on this rank.
    """
    rows, ranks = items(), make()
    share = rows[:4] if ranks.rank == 0 else rows[4:]
    want, moved = beside(LocalStrategy(), False, rows)
    means = [float(np.mean(row, dtype=np.float64)) for row in want]
    far = {"moved": distance(moved, want)}
    for kind in ("whole", "sharded", "offload"):
        got, _ = beside(make(), False, share, kind)
        far[f"placed: {kind}"] = distance(every(ranks, got), want)
    for lora in (False, True):
        name = "adapter off" if lora else "whole"
        got, moved = beside(LocalStrategy(), lora, rows)
        far[name], far[f"moved, {name}"] = distance(got, want), distance(moved, want)
        got, moved = beside(make(), lora, share)
        far[f"{name}, sharded"] = distance(every(ranks, got), want)
        far[f"moved, {name}, sharded"] = distance(every(ranks, moved), want)
        far[f"{name}, beforehand"] = distance(beforehand(LocalStrategy(), lora, rows), means)
        far[f"{name}, beforehand, sharded"] = distance(every(ranks, beforehand(make(), lora, share)), means)
    return far


def every(ranks: Any, share: list[Any]) -> list[Any]:
    """The rows of all ranks."""
    return [row for rank in ranks.gather_objects(share) for row in rank]


def distance(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Largest difference, relative where it exceeds 1."""
    rows = zip(one, other, strict=True)
    return max(float((np.abs(np.subtract(a, b)) / np.maximum(1, np.abs(b))).max()) for a, b in rows)

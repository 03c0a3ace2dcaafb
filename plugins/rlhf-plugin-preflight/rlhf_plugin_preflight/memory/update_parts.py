"""What a rank holds in an update beside weights and moments, stage by stage of the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_plugin_preflight.memory.backward import AFTER, FIRST, HEAD, LAST, OTHER, OTHER_FIRST, ROOT, SECOND
from rlhf_plugin_preflight.memory.live import UNNAMED

if TYPE_CHECKING:
    from rlhf_plugin_preflight.memory.footprint import Footprint
    from rlhf_plugin_preflight.memory.layouts import Shares
    from rlhf_plugin_preflight.memory.plan import Placement
    from rlhf_plugin_preflight.memory.update import Update

Sizes = dict[str, float]
GATHERED = {HEAD: 1, FIRST: 2, SECOND: 2, LAST: 1, OTHER: 1, OTHER_FIRST: 2}
"""Decoder layers that are whole under FSDP: the one at hand, and the one that comes next, which is being gathered."""
AHEAD = (HEAD, FIRST, SECOND, OTHER, OTHER_FIRST)
"""Stages in which there is such a next one."""
ON_THEIR_WAY = (SECOND, LAST, OTHER, OTHER_FIRST, AFTER)
"""Stages in which the gradients of the layer before lie flat, as they were added over ranks."""


def in_update(footprint: Footprint, of: Shares, placement: Placement) -> list[Sizes]:
    """What a rank may hold at most, in each stage; ``footprint`` is of one process that holds everything."""
    split, update = placement.tensor * placement.pipeline, footprint.update
    whole_root = root_weight_bytes(footprint) / placement.tensor
    if of.keeps_root:
        return [_in_stage_3(footprint, of, placement)]
    if of.gathers:
        return [{**_sharded(footprint, of, placement, name), "root group": whole_root} for name in update.stages]
    if placement.strategy == "ddp" and placement.ranks > 1:
        return [_beside_buckets(footprint, placement, name) for name in update.stages]
    return [
        {
            "gradients": stage.whole.gradients / split * of.gradients,
            UNNAMED: activations(stage.whole.activations, placement),
            **_bucket(footprint, of, placement),
        }
        for stage in update.stages.values()
    ]


def root_weight_bytes(footprint: Footprint) -> float:
    """Of what is in no decoder layer, the policy's and the critic's."""
    model = footprint.model
    return model.root * (model.weights + footprint.update.critic) / model.weights if model.weights else 0.0


def activations(size: float, placement: Placement) -> float:
    """Split over tensor ranks: 24 of 34 bytes of a token's activations (Korthikanti et al. 2022, equation 2)."""
    return size * (10 + 24 / placement.tensor) / 34


def passed(update: Update, name: str) -> int:
    """Decoder layers whose gradients are complete in a stage."""
    last = max(0, update.units - 1)
    counts = {SECOND: 1, LAST: last, OTHER: update.first_units, OTHER_FIRST: update.first_units}
    return {**counts, AFTER: update.units, ROOT: update.units}.get(name, 0)


def _sharded(footprint: Footprint, of: Shares, placement: Placement, name: str) -> Sizes:
    """Under FSDP: gradients of a layer are divided when they are complete, those of the root at the end."""
    split, update, narrow = placement.tensor * placement.pipeline, footprint.update, footprint.sixteen_bits
    stages, layer = (update.stages, footprint.own.layer) if narrow is None else (narrow.stages, narrow.layer)
    stage = stages[name]
    if footprint.sizes.micro_batches > 1:
        complete = float(update.trained)  # those of the micro-batches before
    else:
        complete = passed(update, name) * update.layer + (update.root if name == ROOT else 0)
    flat = update.layer if name in ON_THEIR_WAY else 0.0
    ahead = 1 if name in AHEAD and of.weights == 1 else 0  # one rank has nothing to wait for, and gathers none ahead
    return {
        "gradients": complete / split * of.gradients,
        UNNAMED: activations(stage.undivided.activations, placement),
        "gathered units": (GATHERED.get(name, 0) - ahead) * layer / placement.tensor,
        "communication": (stage.undivided.gradients + flat) / split,
    }


def _beside_buckets(footprint: Footprint, placement: Placement, name: str) -> Sizes:
    """Under DDP gradients are views of the buckets; with several micro-batches the earlier ones lie beside them."""
    split, update = placement.tensor * placement.pipeline, footprint.update
    beside = update.trained - passed(update, name) * update.layer if footprint.sizes.micro_batches > 1 else 0.0
    alone = activations(update.stages[name].activations, placement)
    return {"gradients": update.trained / split, UNNAMED: alone, "communication": beside / split}


def _bucket(footprint: Footprint, of: Shares, placement: Placement) -> Sizes:
    """Of ZeRO 1 and 2: a buffer of stage 2 has its full size at once; stage 1 joins what there is."""
    if not of.stepped or placement.ranks == 1:
        return {}
    whole, trained = 4.0 * placement.bucket, footprint.update.trained / (placement.tensor * placement.pipeline)
    return {"communication": whole if of.gradients < 1 else min(trained, whole)}


def _in_stage_3(footprint: Footprint, of: Shares, placement: Placement) -> Sizes:
    """Gradients have a buffer that stays. Those of the root are whole to the end; later so are two layers', when at
    least one layer's activations are gone. Adapters have no gradients of the root."""
    model, layer = footprint.model, footprint.model.layer / placement.tensor
    of_trained = model.trained / model.parameters if model.parameters else 0.0
    at_first = root_weight_bytes(footprint) / placement.tensor if of_trained == 1 else 0.0
    whole = footprint.update.parts.get(UNNAMED, 0)
    later = at_first + 2.0 * layer * of_trained - whole / max(1, model.layers)
    return {
        "gradients": footprint.update.trained / (placement.tensor * placement.pipeline) * of.gradients,
        UNNAMED: activations(whole, placement),
        "gathered units": 2.0 * layer,
        "communication": max(at_first, later),
    }

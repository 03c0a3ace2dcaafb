"""The check before launch: a run that cannot fit is refused before its model loads.

What is certain to be held is counted first, from the sizes of the weights' files alone; where that and a generous bound
on activations are below what is free, nothing else is looked at. Only what is certain refuses a run. What depends on
how long completions become, or on which rows meet in a micro-batch, warns.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf_core.errors import ConfigError, ModelError
from rlhf_core.launch.memory import readable
from rlhf_core.memory.engine import RESERVED, SYNC, says_memory

if TYPE_CHECKING:
    from rlhf_core.context import BuildContext
    from rlhf_core.memory.layouts import Name
    from rlhf_core.memory.phase import Phase
    from rlhf_core.memory.plan import MemoryPlan, Placement

log = logging.getLogger("rlhf")
PARTS = 16
"""Times its files that a model needs at most beside activations: weights that were kept in bfloat16 or float16,
gradients, moments, copies."""
PER_TOKEN = 32
"""Numbers that one layer keeps for a token, in hidden sizes: 25 are measured on the pocket model."""
SURE = frozenset(
    {
        "weights",
        "reference",
        "critic",
        "rewards",
        "sampler copy",
        "root group",
        "gradients",
        "optimizer",
        "stepped copy",
        "reduce buffer",
        SYNC,
        *RESERVED,
    }
)
"""Parts that do not depend on the data."""


def check_memory(ctx: BuildContext, *, force: bool) -> None:
    """Refuse a run that cannot fit this machine.

    Args:
        ctx: configuration, registry and world size.
        force: warn instead.

    Raises:
        ConfigError: what is needed, what there is, and the cheapest change.
    """
    from rlhf_core.memory.amounts import available_ram

    bounded = not says_memory(ctx.config) and not _has_gpu(ctx.config)
    if bounded and surely_fits(ctx, available_ram() // ctx.world_size):
        return
    from rlhf_core.memory.report import device_of

    device, capacity = device_of(ctx.config, ctx.world_size)
    limit = capacity // (ctx.world_size if device == "cpu" else 1)
    try:
        refusal = _refusal(ctx, limit, on_cpu=device == "cpu", force=force)
    except Exception as error:  # a plan is a help: a model that cannot be rehearsed may still train
        log.info("the memory of this run could not be planned: %s: %s", type(error).__name__, error)
        return
    if refusal is not None:
        raise refusal


def surely_fits(ctx: BuildContext, limit: int) -> bool:
    """Whether a generous bound, from sizes of files and of the configuration alone, is below the limit."""
    run: Any = ctx.config
    weights = weight_file_bytes(run.model.path)
    if weights is None:
        return False
    bound = PARTS * weights + sum(PARTS * (weight_file_bytes(path) or weights) for path in _other_models(run))
    return bound + _activations(run) < limit


def _activations(run: Any) -> int:
    """A bound from the configuration: every token of a micro-batch of the longest sequences."""
    import json

    from rlhf_core.models.sources import resolve_model

    file = Path(resolve_model(run.model.path).place) / "config.json"
    shape: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    layers, hidden, context = (int(shape.get(a) or shape.get(b) or c) for a, b, c in _SIZES)
    vocab, trainer = int(shape.get("vocab_size") or 256_000), run.trainer
    length, sequences = int(getattr(trainer, "max_length", context)), 2 * int(getattr(trainer, "micro_batch_size", 8))
    if hasattr(trainer, "rollout_batch_size"):
        length, sequences = trainer.sampling.max_tokens + (run.dataset.max_prompt_tokens or context), sequences // 2
    rows = int(getattr(run.rollout, "max_concurrent", 256) or 256)
    length = min(length, context)
    return 4 * length * max(sequences, rows // 8) * layers * hidden * PER_TOKEN + 16 * vocab * max(rows, length)


_SIZES = (
    ("num_hidden_layers", "n_layer", 100),
    ("hidden_size", "n_embd", 8192),
    ("max_position_embeddings", "n_positions", 4096),
)


def weight_file_bytes(path: str) -> int | None:
    """Of a local model's weights; None where they are not here. A quantised file is counted as float32."""
    from rlhf_core.models.sources import resolve_model

    try:
        source = resolve_model(path)
    except ModelError:  # a component's path need not be a model's
        return None
    if not source.local:
        return None
    place = Path(source.place)
    if source.gguf:
        return 8 * (place / source.gguf).stat().st_size
    return sum(file.stat().st_size for file in place.glob("*.safetensors")) or None


def _other_models(run: Any) -> list[str]:
    """Of rewards, judges and a critic."""
    from rlhf_core.models.sources import model_paths
    from rlhf_core.plan import walk_components

    paths: list[str] = []
    for kind, part in walk_components(run):
        if kind in ("reward", "judge", "advantage"):
            paths += model_paths(part.model_dump(mode="json", exclude={"pairs", "dataset"}))
    return paths


def _has_gpu(run: Any) -> bool:
    import sys

    if getattr(run.strategy, "device", "auto") == "cpu":
        return False
    import torch

    return "torch" in sys.modules and torch.cuda.is_available()


def _refusal(ctx: BuildContext, limit: int, *, on_cpu: bool, force: bool) -> ConfigError | None:
    """The error for a run that cannot fit; one that may not fit is warned of."""
    from rlhf_core.memory.advice import accepted, cheapest
    from rlhf_core.memory.footprint import footprint
    from rlhf_core.memory.plan import plan_for

    place, found = placement_of(ctx), footprint(ctx, on_cpu=on_cpu)

    def replan(run: Any) -> MemoryPlan:
        return plan_for(footprint(ctx.with_(config=run), on_cpu=on_cpu), place, on_cpu=on_cpu)

    if found.engine is not None and found.engine.refusal is not None and not force:
        return found.engine.refusal
    plan = plan_for(found, place, on_cpu=on_cpu)
    where = "main memory are free" if on_cpu else "the device's memory are free"
    if plan.peak <= limit:
        return None
    certain = certain_bytes(plan)
    if certain <= limit or force:
        log.warning(
            "this run may need %s (%s), and %s of %s; rlhf memory plan says for what",
            *(readable(plan.peak), plan.peak_phase, readable(limit), where),
        )
        return None
    decisive = plan.phases["load"] if _while_loading(plan) else max(_with_moments(plan), key=_sure)
    advice = cheapest(ctx.config, limit, replan, accepted(ctx, found))
    settings = " ".join(f"--set {change.setting}" for change in advice.changes)
    elsewhere = "a smaller model, or more cards: rlhf memory plan"
    if _while_loading(plan):
        elsewhere = (
            "a smaller model; fsdp and deepspeed's stage 3 read the weights of a folder with safetensors by parts"
        )
    return ConfigError(
        f"this run cannot fit: it holds {readable(certain)} before any activation; {readable(limit)} of {where}",
        why=", ".join(f"{name} {readable(size)}" for name, size in decisive.parts.items())
        + (": every rank loads all of it before it is divided" if _while_loading(plan) else ""),
        fix=(f"{settings} ({readable(advice.peak)})" if advice.fits else elsewhere) + "; --force runs it all the same",
    )


def placement_of(ctx: BuildContext) -> Placement:
    """How the run's strategy shares the bytes out, if it is one of those that are planned; whole ranks if not."""
    from rlhf_core.memory.layouts import STRATEGIES
    from rlhf_core.memory.plan import BUCKET, Placement

    chosen = ctx.config.strategy
    if ctx.world_size == 1 or chosen is None:
        return Placement("single") if ctx.world_size == 1 else Placement("ddp", ctx.world_size)
    size = getattr(chosen, "shard_size", None)
    name = f"{chosen.name}_offload" if getattr(chosen, "offload", False) else "hsdp" if size else chosen.name
    name = getattr(chosen, "planned_as", name)  # a strategy whose settings choose among several layouts
    known = name if name in STRATEGIES and name != "single" else "ddp"
    bucket = getattr(chosen, "bucket", BUCKET)
    return Placement(cast("Name", known), ctx.world_size, size or ctx.world_size, bucket=bucket)


def certain_bytes(plan: MemoryPlan) -> int:
    """What is held whatever the data: weights, copies, gradients and moments in an update, an engine's own memory while
    it samples, or what loading takes."""
    return max(*map(_sure, _with_moments(plan)), plan.phases["load"].total)


def _with_moments(plan: MemoryPlan) -> list[Phase]:
    """Phases in which the optimizer has its moments."""
    return [*plan.update_stages, *(plan.phases[name] for name in ("rollout",) if name in plan.phases)]


def _sure(stage: Phase) -> int:
    return sum(stage.parts.get(name, 0) for name in SURE)


def _while_loading(plan: MemoryPlan) -> bool:
    """Whether loading needs more than an update or sampling is certain to."""
    return plan.phases["load"].total > max(map(_sure, _with_moments(plan)))


__all__ = ["certain_bytes", "check_memory", "placement_of", "surely_fits", "weight_file_bytes"]

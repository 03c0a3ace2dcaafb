"""The check before launch: what is certain to be held, from the sizes of the weights' files, refuses a run before its
model loads; what depends on lengths or rows warns. Nothing else is looked at where a generous bound fits."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.config import ConfigError
from rlhf_plugin_preflight.memory.amounts import readable
from rlhf_plugin_preflight.memory.engine import RESERVED, SYNC, says_memory
from rlhf_plugin_preflight.memory.plan import placement_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlhf_core.config import BuildContext, RunConfig
    from rlhf_plugin_preflight.memory.advice import Replan
    from rlhf_plugin_preflight.memory.phase import Phase
    from rlhf_plugin_preflight.memory.plan import MemoryPlan

    Advised = Callable[[int], str]
    """Limit -> settings with which a run fits; empty if there are none."""

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
        "teacher",
        "sampler copy",
        "root group",
        "gradients",
        "gradients on the host",
        "optimizer",
        "stepped copy",
        "reduce buffer",
        SYNC,
        *RESERVED,
    }
)
"""Parts that do not depend on the data."""
SURE_TO_SAMPLE = SURE | {"gathered units"}
"""Those of sampling, to which a sharding strategy gathers all weights."""


def check_memory(ctx: BuildContext, *, force: bool) -> None:
    """Refuse a run that cannot fit this machine, with the cheapest change; ``force`` warns instead."""
    from rlhf_plugin_preflight.memory.amounts import available_ram

    bounded = not says_memory(ctx.config) and not _has_gpu(ctx.config)
    if bounded and surely_fits(ctx, available_ram() // ctx.world_size):
        return
    from rlhf_plugin_preflight.memory.report import device_of

    device, capacity = device_of(ctx.config, ctx.world_size)
    on_cpu = device == "cpu"
    limit = capacity // (ctx.world_size if on_cpu else 1)
    try:
        refusal = _refusal(ctx, limit, on_cpu=on_cpu, force=force)
    except Exception as error:  # a plan is a help: a model that cannot be rehearsed may still train
        log.info("the memory of this run could not be planned: %s: %s", type(error).__name__, error)
        return
    if refusal is not None:
        raise refusal


def surely_fits(ctx: BuildContext, limit: int) -> bool:
    """Whether a generous bound, from sizes of files and of the configuration alone, is below the limit."""
    from rlhf_plugin_preflight.file_sizes import weight_file_bytes

    run: Any = ctx.config
    weights = weight_file_bytes(run.model.path)
    if weights is None:
        return False
    bound = PARTS * weights + sum(PARTS * (weight_file_bytes(path) or weights) for path in _other_models(run))
    return bound + _activations(run) < limit


def _activations(run: Any) -> int:
    """A bound from the configuration: every token of a micro-batch of the longest sequences."""
    import json

    from rlhf_core.models import resolve_model

    file = Path(resolve_model(run.model.path).path) / "config.json"
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


def _other_models(run: Any) -> list[str]:
    """Of rewards, judges, a critic and teachers."""
    from rlhf_core.models import model_paths

    paths = [config.path for config, _ in getattr(run.trainer, "memory_models", lambda run: ())(run)]
    for kind, part in run.components():
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
    from rlhf_plugin_preflight.memory.advice import accepted
    from rlhf_plugin_preflight.memory.footprint import footprint
    from rlhf_plugin_preflight.memory.plan import plan_for

    placement, measured = placement_of(ctx), footprint(ctx, on_cpu=on_cpu)

    def replan(run: Any) -> MemoryPlan:
        rehearsed = measured if run is ctx.config else footprint(ctx.with_(config=run), on_cpu=on_cpu)
        plan = plan_for(rehearsed, placement, on_cpu=on_cpu)
        return plan.in_one_memory if on_cpu else plan

    if measured.engine is not None and measured.engine.refusal is not None and not force:
        return measured.engine.refusal
    plan, takes = replan(ctx.config), accepted(ctx, measured)
    beyond = _device_refusal(plan, partial(_advised, ctx, replan, takes), limit, on_cpu, force)
    return beyond or _host_refusal(ctx, plan, partial(_advised, ctx, lambda run: replan(run).on_host, takes), force)


def _device_refusal(plan: MemoryPlan, advised: Advised, limit: int, on_cpu: bool, force: bool) -> ConfigError | None:
    """Of a run that the device's memory is too small for."""
    where = "main memory are free" if on_cpu else "the device's memory are free"
    if plan.peak <= limit:
        return None
    phase, decisive, certain = most_certain(plan)
    if certain <= limit or force:
        log.warning(
            "this run may need %s (%s), and %s of %s; rlhf memory plan says for what",
            *(readable(plan.peak), plan.peak_phase, readable(limit), where),
        )
        return None
    elsewhere = "a smaller model, or more cards: rlhf memory plan"
    if phase == "load":
        elsewhere = (
            "a smaller model; fsdp and deepspeed's stage 3 read the weights of a folder with safetensors by parts"
        )
    elif _reason(phase, decisive):
        elsewhere = "a smaller model: of these weights more cards hold as much"
    return ConfigError(
        f"this run cannot fit: it holds {readable(certain)} before any activation; {readable(limit)} of {where}",
        why=_listed(decisive.parts) + (f": {reason}" if (reason := _reason(phase, decisive)) else ""),
        fix=f"{advised(limit) or elsewhere}; --force runs it all the same",
    )


def _reason(name: str, phase: Phase) -> str:
    """Why so much is held in a phase, beside its parts; empty if the parts say it."""
    if name == "load":
        return "every rank loads all of it before it is divided"
    gathers = name == "rollout" and "gathered units" in phase.parts
    return "to sample, all weights are on every rank" if gathers else ""


def _host_refusal(ctx: BuildContext, plan: MemoryPlan, advised: Advised, force: bool) -> ConfigError | None:
    """Of a run that offloads more than this machine's main memory holds."""
    from rlhf_plugin_preflight.memory.amounts import available_ram, ranks_here

    ranks, free = ranks_here(ctx.world_size), available_ram()
    needed = plan.host_peak * ranks
    if needed <= free:
        return None
    offloads = "offload" in plan.placement.strategy
    whose = "what is offloaded" if offloads else "what lies beside the device"
    what = f"{whose} needs {readable(needed)} of main memory, and {readable(free)} are free"
    if force:
        log.warning("%s", what)
        return None
    parts = max((phase.host for phase in plan.phases.values()), key=lambda host: sum(host.values()))
    return ConfigError(
        what,
        why=f"on each of {ranks} ranks of this machine {_listed(parts)}",
        fix=(advised(free // ranks) or "more machines, or a smaller model")
        + ("; without strategy.offload it lies on the device" if offloads else "")
        + "; --force runs it all the same",
    )


def _advised(ctx: BuildContext, replan: Replan, takes: Callable[[RunConfig], bool], limit: int) -> str:
    from rlhf_plugin_preflight.memory.advice import cheapest

    advice = cheapest(ctx.config, limit, replan, takes)
    settings = " ".join(f"--set {change.setting}" for change in advice.changes)
    return f"{settings} ({readable(advice.peak)})" if advice.fits else ""


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {readable(size)}" for name, size in parts.items())


class Certain(NamedTuple):
    name: str
    phase: Phase
    size: int


def most_certain(plan: MemoryPlan) -> Certain:
    """Where most is held whatever the data: loading, an update (without activations), or sampling."""
    stages = [Certain("update", stage, _sum(stage, SURE)) for stage in plan.update_stages]
    if (sampling := plan.phases.get("rollout")) is not None:
        stages.append(Certain("rollout", sampling, _sum(sampling, SURE_TO_SAMPLE)))
    stages.append(Certain("load", plan.phases["load"], plan.phases["load"].total))
    return max(stages, key=lambda stage: stage.size)


def _sum(stage: Phase, names: frozenset[str]) -> int:
    return sum(size for name, size in stage.parts.items() if name in names)

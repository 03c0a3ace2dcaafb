"""The memory plan of a run: bytes per rank, phase and part, for any strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError, did_you_mean
from rlhf_plugin_preflight.memory.engine import SYNC, EngineMemory
from rlhf_plugin_preflight.memory.footprint import Footprint, ModelSize, divided_among
from rlhf_plugin_preflight.memory.layouts import STRATEGIES, Shares, shares
from rlhf_plugin_preflight.memory.live import OFFLOADED
from rlhf_plugin_preflight.memory.phase import COMPUTING, Phase, load_phase, phase_of
from rlhf_plugin_preflight.memory.update_parts import in_update, root_weight_bytes

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext


PHASES = ("load", "rollout", "update", "checkpoint")
BUCKET = 50_000_000
"""Elements that rlhf-plugin-deepspeed reduces at a time, by default."""
MOST_RANKS = 4096


@dataclass(frozen=True)
class Placement:
    strategy: str
    ranks: int = 1
    ranks_per_node: int = 8
    tensor: int = 1
    """Ranks that share every layer."""
    pipeline: int = 1
    """Groups of layers on ranks of their own."""
    bucket: int = BUCKET
    """Elements of gradients that DeepSpeed adds over ranks at once."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes per rank."""

    placement: Placement
    phases: Mapping[str, Phase]
    update_stages: Sequence[Phase]
    """Those of the update, of which the largest is its phase: gradients come as activations go."""

    @property
    def peak(self) -> int:
        return max(phase.total for phase in self.phases.values())

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def host_peak(self) -> int:
        return max(sum(phase.host.values()) for phase in self.phases.values())

    @property
    def in_one_memory(self) -> MemoryPlan:
        """The plan where main memory is the device's."""
        phases = {name: phase.in_one_memory for name, phase in self.phases.items()}
        return replace(self, phases=phases, update_stages=[stage.in_one_memory for stage in self.update_stages])

    @property
    def on_host(self) -> MemoryPlan:
        return replace(self, phases={name: Phase(phase.host, {}) for name, phase in self.phases.items()})


def check_placement(placement: Placement, model: ModelSize) -> None:
    """Refuse splits that cannot be: names which number does not divide which."""
    split = placement.tensor * placement.pipeline
    if placement.strategy == "single" and placement.ranks > 1:
        raise ConfigError(
            f"strategy single has one rank, not {placement.ranks}", fix="--strategy ddp, or leave out --ranks"
        )
    if placement.strategy == "hsdp" and placement.ranks % min(placement.ranks, placement.ranks_per_node):
        raise ConfigError(
            f"{placement.ranks} ranks are not whole nodes of {placement.ranks_per_node}",
            fix="change --ranks or --ranks-per-node",
        )
    if placement.ranks % split:
        raise ConfigError(
            f"a split into {placement.tensor} x {placement.pipeline} does not divide {placement.ranks} ranks",
            fix=f"--ranks {split * max(1, placement.ranks // split)}, or smaller --tensor and --pipeline",
        )
    if placement.tensor > 1 and (model.heads % placement.tensor or model.kv_heads % placement.tensor):
        raise ConfigError(
            f"--tensor {placement.tensor} does not divide the {model.heads} heads and {model.kv_heads} heads of keys "
            f"of '{model.path}'",
            fix="choose a common divisor",
        )
    if placement.pipeline > max(1, model.layers):
        raise ConfigError(f"--pipeline {placement.pipeline} is more than the {model.layers} layers", fix="lower it")


def plan_for(footprint: Footprint, placement: Placement, *, on_cpu: bool) -> MemoryPlan:
    """Share out a footprint of one process that holds everything, or its part of layers that ranks divide."""
    check_placement(placement, footprint.model)
    if footprint.part is not None and placement.tensor > 1:
        of_part = replace(placement, ranks=placement.ranks // placement.tensor, tensor=1)
        return replace(plan_for(footprint, of_part, on_cpu=on_cpu), placement=placement)
    split = placement.tensor * placement.pipeline
    of = shares(placement.strategy, placement.ranks // split, placement.ranks_per_node)
    model, update = footprint.model, footprint.update
    weights, reference, trained = model.weights / split, footprint.reference / split, update.trained / split
    critic, moments = update.critic / split, update.parts.get("optimizer", 0) / split
    root = model.root / placement.tensor
    models = {"weights": weights, "reference": reference, "critic": critic}
    copies = {"sampler copy": footprint.sampler / split, "rewards": float(footprint.rewards)}
    copies["teacher"] = float(footprint.teacher)
    kind = footprint.reference_kind
    share = of.weights * footprint.own.weights / model.weights if model.weights else of.weights
    held: dict[str, float] = {**{name: size * share for name, size in models.items()}, **copies}
    held["weights"] += model.packed / split * (1 - of.weights)
    if kind in ("whole", "offload"):
        held["reference"] = reference
    away_reference = {"reference": round(held.pop("reference"))} if kind == "offload" and reference else {}
    if of.keeps_root:
        held["root group"] = root * sum(models.values()) / weights if weights else 0.0
    made = {"stepped copy": trained * of.stepped} if of.stepped else {}
    if of.keeps_root:
        made |= {"gradients": trained * of.gradients, "reduce buffer": 4.0 * placement.bucket}
    elif placement.strategy == "ddp" and placement.ranks > 1:
        made["gradients"] = trained  # views of the buckets, which stay
    if of.host_gradients:
        made["gradients on the host"] = trained * of.host_gradients
    state: dict[str, float] = {"optimizer": moments * of.moments, **made}
    temporaries = update.step / split if on_cpu else trained  # a CPU steps one weight at a time
    in_step = {"gradients": trained * of.gradients, "optimizer temporaries": temporaries * of.moments}
    views = footprint.engine is not None and footprint.engine.copies_weights
    one_by_one = of.gathers and footprint.engine is not None and (views or footprint.engine.from_shards)
    gathers = of.gathers and not one_by_one
    if of.writes_parts and footprint.sixteen_bits is not None:
        footprint = replace(footprint, sampling=footprint.sixteen_bits.sampling)
    whole = {"gathered units": _gathered_to_sample(footprint, of, placement)} if gathers else {}
    cloned = trained * 2 * of.moments if on_cpu and not of.writes_parts else 0.0
    written = max(cloned, 0.0 if of.gathers else model.merged / split)
    gathered = {"gathered weights": _gathered_to_write(model, on_cpu) / split} if of.gathers else {}
    engine = footprint.engine or EngineMemory({})
    away = {"weights_away": of.weights_on_host, "state_away": of.moments_on_host}
    laid = partial(phase_of, {**held, **engine.left}, **away)
    awake = {**held, **engine.parts}
    in_rollout = _in_rollout(footprint, split, cloned=not (views or one_by_one))
    moments_of_rollout = [phase_of(awake, state, {**whole, **parts}, **away) for parts in in_rollout]
    if away_reference:
        moments_of_rollout.append(phase_of(awake, state, {COMPUTING: reference}, **away))
    without_gradients = {name: size for name, size in state.items() if name != "gradients"}
    stages = [laid(without_gradients, each) for each in (*in_update(footprint, of, placement), in_step)]
    phases = {
        "load": load_phase(of, models, awake, made, trained, on_cpu=on_cpu, by_parts=model.by_parts),
        "rollout": max(moments_of_rollout, key=lambda phase: phase.total, default=laid(state, {})),
        "update": max(stages, key=lambda phase: phase.total),
        "checkpoint": laid(state, {"copies to be written": written, **gathered}),
    }
    if not moments_of_rollout:
        del phases["rollout"]
    on_host = {**engine.host, **away_reference}
    beside = {name: replace(phase, host={**phase.host, **on_host}) for name, phase in phases.items()}
    if update.offloaded:
        beside["update"].host[OFFLOADED] = update.offloaded
    return MemoryPlan(placement, beside, stages)


def _in_rollout(footprint: Footprint, split: int, *, cloned: bool) -> list[dict[str, float]]:
    """What comes on top while sampling; an engine of its own first gets the policy's weights, maybe ``cloned``."""
    if footprint.engine is not None and footprint.facts is not None:
        engine = footprint.engine
        handed = {SYNC: cloned * footprint.facts.trained + engine.syncing.get(SYNC, 0)}
        return [{**engine.syncing, **handed}, dict(engine.sampling)]
    if footprint.sampling is None:
        return []
    return [{name: size / (split if name == "KV cache" else 1) for name, size in footprint.sampling.parts.items()}]


def _gathered_to_sample(footprint: Footprint, of: Shares, placement: Placement) -> float:
    """Bytes of policy and critic; ZeRO's stage 3 has the root whole anyway. Of divided weights FSDP gathers a part, and
    whole ones are made of the parts."""
    model, own, split = footprint.model, footprint.own, placement.tensor * placement.pipeline
    narrow = footprint.sixteen_bits if of.writes_parts else None
    units = own.weights + footprint.update.critic - model.packed - (narrow.saved if narrow else 0)
    divided = (model.weights - own.weights) * footprint.tensor / max(1, footprint.tensor - 1)
    kept = root_weight_bytes(footprint) / placement.tensor if of.keeps_root else 0.0
    return (units + divided * (narrow.layer / own.layer if narrow else 1)) / split - kept


def _gathered_to_write(model: ModelSize, on_cpu: bool) -> float:
    """Bytes beyond a rank's share: one weight; in main memory an adapter's twice more, or all where wanted at once."""
    if not on_cpu:
        return float(model.largest)
    return float(model.weights if model.converted else max(model.largest, 3 * model.largest_merged))


def every_strategy(
    footprint: Footprint, placement: Placement, names: Sequence[str], *, on_cpu: bool
) -> list[MemoryPlan]:
    """The plan of each of these strategies on as many ranks; one process where there is one."""
    ranks, ranks_per_node, bucket = placement.ranks, placement.ranks_per_node, placement.bucket
    names = [name for name in names if (name == "single") == (ranks == 1)]
    if ranks > 1 and ranks % min(ranks, ranks_per_node):
        names.remove("hsdp")
    places = [Placement(name, ranks, ranks_per_node, footprint.tensor, bucket=bucket) for name in names]
    return [plan_for(footprint, place, on_cpu=on_cpu) for place in places]


def fewest_ranks(
    footprint: Footprint,
    name: str,
    limit: int,
    ranks_per_node: int,
    *,
    on_cpu: bool,
    bucket: int = BUCKET,
    host: int | None = None,
    on_machine: int = Placement.ranks_per_node,
    least: int = 1,
) -> int | None:
    """The fewest ranks, ``least`` times a power of two, on which a strategy and its share of ``host`` bytes fit; None
    if none do."""
    ranks = least
    while ranks <= MOST_RANKS:
        of = "single" if ranks == 1 and name == "ddp" else name
        placement = Placement(of, ranks, ranks_per_node, footprint.tensor, bucket=bucket)
        plan = plan_for(footprint, placement, on_cpu=on_cpu)
        if plan.peak <= limit and (host is None or plan.host_peak * min(ranks, on_machine) <= host):
            return ranks
        ranks *= 2
    return None


def as_json(plan: MemoryPlan) -> dict[str, Any]:
    placement = plan.placement
    return {
        "strategy": placement.strategy,
        "ranks": placement.ranks,
        "ranks_per_node": placement.ranks_per_node,
        "peak": plan.peak,
        "peak_phase": plan.peak_phase,
        "host_peak": plan.host_peak,
        "phases": {
            name: {"total": phase.total, "parts": phase.parts, "host": phase.host}
            for name, phase in plan.phases.items()
        },
    }


def placement_of(ctx: BuildContext) -> Placement:
    """How the run's strategy shares the bytes out, if it is one of those that are planned; whole ranks if not."""
    chosen = ctx.config.strategy
    if ctx.world_size == 1 or chosen is None:
        return Placement("single") if ctx.world_size == 1 else Placement("ddp", ctx.world_size)
    size = getattr(chosen, "shard_size", None)
    name = f"{chosen.name}_offload" if getattr(chosen, "offload", False) else "hsdp" if size else chosen.name
    name = getattr(chosen, "planned_as", name)  # a strategy whose settings choose among several layouts
    known = name if name in STRATEGIES and name != "single" else "ddp"
    bucket = getattr(chosen, "bucket", BUCKET)
    tensor = divided_among(ctx.config, "tensor_parallel")
    return Placement(known, ctx.world_size, size or ctx.world_size, tensor, bucket=bucket)


def requested_placement(
    ctx: BuildContext, strategy: str | None, ranks: int, ranks_per_node: int | None, tensor: int, pipeline: int
) -> Placement:
    """A layout that somebody asks about: ``tensor`` ranks share every layer, ``pipeline`` groups of layers."""
    own = placement_of(ctx)
    name = strategy or (own.strategy if ctx.world_size > 1 else "single" if ranks == 1 else "ddp")
    if name not in STRATEGIES:
        near = did_you_mean(name, STRATEGIES, limit=1)
        raise ConfigError(f"there is no strategy '{name}' to plan for", why=near, fix=f"one of {', '.join(STRATEGIES)}")
    if (divided := divided_among(ctx.config, "tensor_parallel")) > 1:
        if tensor * pipeline > 1 or name != own.strategy:
            raise ConfigError(
                f"strategy.tensor_parallel {divided} with --strategy {name}, --tensor {tensor} --pipeline {pipeline}",
                why="it is one of fsdp's own layouts",
                fix="leave the options out, or the setting",
            )
        ctx.config.strategy.preflight(ctx)  # pyright: ignore[reportOptionalMemberAccess]
        return own
    per_node = ranks_per_node or (own.ranks_per_node if name == own.strategy == "hsdp" else Placement.ranks_per_node)
    return Placement(name, ranks, per_node, tensor, pipeline)

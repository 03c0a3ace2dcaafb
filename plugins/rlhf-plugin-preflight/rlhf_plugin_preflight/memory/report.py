"""Everything that a plan says about a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlhf_plugin_preflight.cards import free_bytes
from rlhf_plugin_preflight.memory.advice import Advice, accepted, cheapest
from rlhf_plugin_preflight.memory.amounts import available_ram
from rlhf_plugin_preflight.memory.footprint import Footprint, ModelSize, divided_among, footprint
from rlhf_plugin_preflight.memory.layouts import STRATEGIES
from rlhf_plugin_preflight.memory.plan import (
    MemoryPlan,
    Placement,
    as_json,
    check_placement,
    every_strategy,
    fewest_ranks,
    plan_for,
)

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, ConfigError, Registry, RunConfig
    from rlhf_plugin_preflight.memory.advice import Replan


@dataclass(frozen=True)
class Report:
    algo: str
    footprint: Footprint
    plan: MemoryPlan
    others: Sequence[MemoryPlan]
    planned_for: Sequence[str]
    """Strategies that this installation does not have."""
    limit: int
    on_cpu: bool
    fewest: dict[str, int | None]
    """Strategy -> fewest ranks on which it fits; of powers of two."""
    advice: Advice | None
    samples_only_to_look: bool = False
    """Whether an offline trainer samples its policy between updates, which a setting ends."""
    host_limit: int | None = None
    """Bytes of main memory for each rank, beside a device of its own; None where nobody said."""

    @property
    def fits(self) -> bool:
        """Whether the peaks are within the device's memory and main memory, and the rollout engine can start."""
        return self.holds(self.plan) and self.engine_refusal is None

    def holds(self, plan: MemoryPlan) -> bool:
        """Whether a plan's peaks are within both memories."""
        return plan.peak <= self.limit and (self.host_limit is None or plan.host_peak <= self.host_limit)

    @property
    def engine_refusal(self) -> ConfigError | None:
        """Why the rollout engine cannot start with its settings; None where it can."""
        return None if self.footprint.engine is None else self.footprint.engine.refusal

    @property
    def is_estimate(self) -> bool:
        """Whether the placement is one that this toolkit does not make: its rows are no measurement's."""
        placement = self.plan.placement
        split = placement.tensor // self.footprint.tensor * placement.pipeline
        return placement.strategy in self.planned_for or split > 1

    def as_json(self) -> dict[str, Any]:
        model, sizes = self.footprint.model, self.footprint.sizes
        advice, engine = self.advice, self.footprint.engine
        return {
            "algo": self.algo,
            "model": {name: getattr(model, name) for name in type(model).__dataclass_fields__},
            "lengths": sizes.source,
            "micro_batch": [{"prompt": row.prompt, "replies": list(row.replies)} for row in sizes.micro_batch],
            "device": "cpu" if self.on_cpu else "accelerator",
            "limit": self.limit,
            "host_limit": self.host_limit,
            "fits": self.fits,
            "estimate": self.is_estimate,
            "engine": None
            if engine is None
            else {
                "estimate": engine.is_estimate,
                "elsewhere": dict(engine.elsewhere),
                "refusal": None if engine.refusal is None else engine.refusal.what,
            },
            **as_json(self.plan),
            "strategies": [
                {**as_json(one), "planned_for": one.placement.strategy in self.planned_for} for one in self.others
            ],
            "fewest_ranks": self.fewest,
            "cheapest_change": None
            if advice is None
            else {"settings": [c.setting for c in advice.changes], "peak": advice.peak, "fits": advice.fits},
        }


def make_report(
    ctx: BuildContext,
    placement: Placement,
    limit: int | None,
    prompt: int | None = None,
    reply: int | None = None,
    host: int | None = None,
    on_machine: int | None = None,
) -> Report:
    """Plan a run. ``limit``: bytes of each card, ``host`` of each machine (None: this machine's); ``on_machine``: most
    ranks of a machine (None: 8); ``prompt``, ``reply``: see
    :func:`~rlhf_plugin_preflight.memory.footprint.footprint`."""
    placement = replace(placement, bucket=getattr(ctx.config.strategy, "bucket", placement.bucket))
    device, capacity = device_of(ctx.config, placement.ranks)
    on_cpu = device == "cpu" and limit is None
    most = capacity // (placement.ranks if on_cpu else 1) if limit is None else limit
    if host is None and limit is None:
        host = available_ram()
    beside, on_machine = None if on_cpu else host, on_machine or Placement.ranks_per_node

    def check(model: ModelSize) -> None:
        check_placement(placement, model)

    def footprint_of(run: RunConfig) -> Footprint:
        return footprint(ctx.with_(config=run), on_cpu=on_cpu, prompt=prompt, reply=reply, device=limit, check=check)

    def planned(of: Footprint) -> MemoryPlan:
        plan = plan_for(of, placement, on_cpu=on_cpu)
        return plan.in_one_memory if on_cpu else plan

    def replan(run: RunConfig) -> MemoryPlan:
        key = repr(run)
        if key not in footprints:
            footprints[key] = footprint_of(run)
        return planned(footprints[key])

    divided = divided_among(ctx.config, "tensor_parallel")
    group = divided * divided_among(ctx.config, "sequence_parallel")
    names = [n for n in STRATEGIES if group == 1 or n == "fsdp" or (divided == 1 and n in ("fsdp_offload", "hsdp"))]
    whole = footprint_of(ctx.config)
    footprints = {repr(ctx.config): whole}
    report = Report(
        algo=ctx.config.trainer.name,
        footprint=whole,
        plan=planned(whole),
        others=every_strategy(whole, placement, names, on_cpu=on_cpu),
        planned_for=[name for name in STRATEGIES if not installed(name, ctx.registry)],
        limit=most,
        on_cpu=on_cpu,
        fewest={
            name: fewest_ranks(
                whole,
                name,
                most,
                placement.ranks_per_node,
                on_cpu=on_cpu,
                bucket=placement.bucket,
                host=beside,
                on_machine=on_machine,
                least=group,
            )
            for name in names
            if name != "single"
        },
        advice=None,
        samples_only_to_look=bool(getattr(ctx.config.trainer, "sample_prompts", 0)) and ctx.config.reward is None,
        host_limit=None if beside is None else beside // min(placement.ranks, on_machine),
    )
    return replace(report, advice=_advice(report, ctx, replan))


def _advice(report: Report, ctx: BuildContext, replan: Replan) -> Advice | None:
    """The cheapest settings with which a run fits the card, or main memory where only that is too small."""
    takes = accepted(ctx, report.footprint)
    if report.plan.peak > report.limit:
        return cheapest(ctx.config, report.limit, replan, takes)
    if report.host_limit is not None and report.plan.host_peak > report.host_limit:
        return cheapest(ctx.config, report.host_limit, lambda run: replan(run).on_host, takes)
    return None


def device_of(run: RunConfig, ranks: int) -> tuple[str, int]:
    """Where a run would run here, and the bytes of each of its processes; other cards are not asked."""
    import torch

    if getattr(run.strategy, "device", "auto") != "cpu" and torch.cuda.is_available():
        return "cuda", free_bytes(min(ranks, torch.cuda.device_count()))
    return "cpu", available_ram()


def installed(name: str, registry: Registry) -> bool:
    """Whether the toolkit has a strategy; ZeRO's stages and offload are settings of one."""
    plugin = {"zero": "deepspeed", "hsdp": "fsdp"}.get(name[:4], name.split("_")[0])
    return any(entry.name == plugin for entry in registry.entries("strategy"))

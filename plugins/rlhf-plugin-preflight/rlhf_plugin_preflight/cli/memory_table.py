"""What `rlhf memory plan` prints for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rlhf_core.cli import table
from rlhf_plugin_preflight.memory.advice import NO_SAMPLES
from rlhf_plugin_preflight.memory.amounts import readable

if TYPE_CHECKING:
    from rlhf_plugin_preflight.memory.plan import MemoryPlan
    from rlhf_plugin_preflight.memory.report import Report


def print_plan(report: Report) -> None:
    for line in _head(report):
        click.echo(line)
    click.echo()
    _phases(report.plan, report.on_cpu)
    click.echo()
    for line in _verdict(report):
        click.echo(line)
    if report.plan.placement.ranks > 1 or not report.fits:
        click.echo()
        _strategies(report)


def _head(report: Report) -> Iterator[str]:
    model, layout, sizes = report.footprint.model, report.plan.placement, report.footprint.sizes
    trained = "all trained" if model.trained == model.parameters else f"{model.trained / 1e6:,.1f} M trained"
    yield f"{report.algo} of {model.path}: {model.parameters / 1e6:,.1f} M parameters, {trained}"
    split = f", tensor {layout.tensor} x pipeline {layout.pipeline}" if layout.tensor * layout.pipeline > 1 else ""
    label = " (an estimate: planned for, not in this toolkit)" if report.is_estimate else ""
    where = "in main memory" if report.on_cpu else "per card"
    yield f"strategy {layout.strategy}, {layout.ranks} rank{'s' * (layout.ranks > 1)}{split}{label}; bytes {where}"
    rows = sum(len(row.replies) for row in sizes.micro_batch)
    tokens = sum(row.tokens for row in sizes.micro_batch)
    yield f"micro-batch of {rows} sequences, {tokens:,} tokens; {sizes.source}"


def _phases(plan: MemoryPlan, on_cpu: bool) -> None:
    names = list(plan.phases)
    parts = list(dict.fromkeys(part for phase in plan.phases.values() for part in phase.parts))
    rows = [[part, *(_cell(plan.phases[n].parts.get(part, 0)) for n in names)] for part in parts]
    rows.append(["total", *(_cell(plan.phases[n].total) for n in names)])
    if not on_cpu and plan.host_peak:
        rows.append(["on the host", *(_cell(sum(plan.phases[n].host.values())) for n in names)])
    table(["part", *names], rows)


def _cell(size: int) -> str:
    return readable(size) if size else ""


def _verdict(report: Report) -> Iterator[str]:
    plan = report.plan
    share = "of available memory" if report.on_cpu else "of each card"
    word = "fits" if plan.peak <= report.limit else "does NOT fit"
    yield f"peak {readable(plan.peak)} in {plan.peak_phase}: {word} {readable(report.limit)} {share}"
    if not report.on_cpu and plan.host_peak:
        yield _host(report)
    yield from _engine(report)
    yield from _notes(report)
    advice = report.advice
    if advice is None:
        return
    settings = " ".join(f"--set {change.setting}" for change in advice.changes)
    if advice.fits:
        many = "change" if len(advice.changes) == 1 else "changes"
        yield f"cheapest {many} that fit{'s' * (many == 'change')}: {settings} ({readable(advice.peak)})"
        yield from (f"  {change.setting}: {change.cost}" for change in advice.changes)
    else:
        yield f"no setting is enough: with {settings or 'nothing to change'} it still needs {readable(advice.peak)}"


def _notes(report: Report) -> Iterator[str]:
    """What a reader of the table would try next, and what it brings."""
    plan = report.plan
    if report.samples_only_to_look and plan.peak_phase == "rollout":
        least = max((phase.total for name, phase in plan.phases.items() if name != "rollout"), default=0)
        yield f"the peak samples for evaluations alone: --set {NO_SAMPLES} leaves {readable(least)} or less"
    yield from _reference(report)
    if plan.placement.ranks == 1 and plan.placement.strategy.startswith(("fsdp", "hsdp", "zero")):
        states = sum(plan.phases["update"].parts.get(part, 0) for part in ("weights", "gradients", "optimizer"))
        moves = "; offload moves some to main memory" if "offload" in plan.placement.strategy else ""
        yield (
            f"{plan.placement.strategy} on one rank shards nothing: weights, gradients and moments stay whole "
            f"({readable(states)} at the peak){moves}. Only activations can fall: model.gradient_checkpointing=true"
        )


def _reference(report: Report) -> Iterator[str]:
    """What a reference policy holds, and what ``trainer.reference`` would make of it."""
    whole, kind = report.footprint.reference, report.footprint.reference_kind
    place, own = report.plan.placement, report.footprint.own.weights / report.footprint.model.weights
    if not whole:
        return
    held = report.plan.phases["load"].parts.get("reference", 0)
    kinds = {
        "whole": whole,
        "sharded": whole * own // (place.ranks // report.footprint.tensor),
        "offload": 0,
        "precomputed": 0,
    }
    costs = ", ".join(f"{name} {readable(size)}" for name, size in kinds.items())
    half = readable(2 * report.footprint.model.parameters)
    yield (
        f"reference: {readable(held)} on each rank, {kind or 'laid out as the weights'}. By trainer.reference.kind: "
        f"{costs} (dtype=bfloat16: whole {half}); LoRA needs none"
    )


def _host(report: Report) -> str:
    peak, limit = report.plan.host_peak, report.host_limit
    held = f"main memory: {readable(peak)} for each rank"
    if limit is None:
        return f"{held}; --host-memory SIZE says whether a machine has it"
    return f"{held}: {'fits' if peak <= limit else 'does NOT fit'} {readable(limit)} that each can have"


def _engine(report: Report) -> Iterator[str]:
    engine = report.footprint.engine
    if engine is None:
        return
    for process, size in engine.elsewhere.items():
        yield f"rollout engine: {readable(size)} on {process}, which no rank uses: not counted here"
    if engine.is_estimate:
        yield "rollout engine: its bytes are an estimate"


def _strategies(report: Report) -> None:
    rows = [
        [
            plan.placement.strategy,
            plan.placement.ranks,
            readable(plan.peak),
            plan.peak_phase,
            readable(plan.host_peak) if plan.host_peak else "",
            "yes" if report.holds(plan) else "no",
            _fewest(report, plan.placement.strategy),
            "planned for" if plan.placement.strategy in report.planned_for else "",
        ]
        for plan in report.others
    ]
    table(["strategy", "ranks", "peak", "in", "on the host", "fits", "fewest ranks", ""], rows)


def _fewest(report: Report, name: str) -> str:
    if name not in report.fewest:
        return ""
    count = report.fewest[name]
    return "none" if count is None else str(count)

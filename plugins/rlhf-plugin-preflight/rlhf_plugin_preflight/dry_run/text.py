"""What `rlhf train --dry-run` says to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core.config import UserError
from rlhf_plugin_preflight.dry_run.look import NOT_COUNTED, DryRun, look_at
from rlhf_plugin_preflight.memory.amounts import readable
from rlhf_plugin_preflight.origin import Row, origins

if TYPE_CHECKING:
    from rlhf_core.config import Registry, RunConfig
    from rlhf_core.plugins.hooks import Preflight

WIDTH = 10


def describe(event: Preflight) -> str:
    """Look at models and data of a run, and say what it would do."""
    return "\n".join(_lines(event))


def _lines(event: Preflight) -> Iterator[str]:
    config, facts = event.context.config, look_at(event.context)
    yield "dry run: models and data are in order (weights were not read); nothing was trained or written\n"
    rows = [
        ("algorithm", _algorithm(config)),
        ("model", _model(config, facts)),
        ("data", _data(event, facts)),
        ("steps", _steps(config, facts)),
        ("tokens", _tokens(config, facts)),
        ("memory", _memory(facts, event.context.world_size)),
    ]
    for name, lines in rows:
        for at, line in enumerate(lines):
            yield f"{name if at == 0 else '':<{WIDTH}}{line}"
    if event.settings is not None:
        yield from _settings(event.settings, event.context.registry)
    yield "\nevery setting: rlhf config show --origin; the whole plan: --dry-run --json"


def _algorithm(config: RunConfig) -> list[str]:
    parts = [(slot, getattr(config, slot)) for slot in ("loss", "advantage", "reward")]
    return [config.trainer.name + "".join(f", {slot} {part.name}" for slot, part in parts if part is not None)]


def _model(config: RunConfig, facts: DryRun) -> list[str]:
    model = facts.model
    trained = "all" if model.trainable == model.parameters else f"{_count(model.trainable)} of them"
    seen = [] if model.weights_seen else ["its weights are not on this machine yet: only configuration and tokenizer"]
    return [
        config.model.path,
        f"{model.architecture}, {_count(model.parameters)} parameters in {config.model.dtype}, {trained} trained; "
        f"context {model.context:,} tokens",
        *seen,
    ]


def _data(event: Preflight, facts: DryRun) -> list[str]:
    rows = facts.rows
    if rows is None:
        from rlhf_core.runs.launch.rows import remote_sources

        remote = ", ".join(source.path for source in remote_sources(event.context.config))
        if remote:
            return [f"{remote} at the hub: it exists, its rows are not downloaded by a dry run"]
        return [f"{name}: {n['train']:,} rows, {n['heldout']:,} held out" for name, n in event.rows.items()]
    lines = [f"{name}: {n['train']:,} rows to train on, {n['heldout']:,} held out" for name, n in event.rows.items()]
    lines += [f"{count:,} rows left out: {reason.replace('_', ' ')}" for reason, count in rows.dropped.items()]
    if facts.lengths is not None:
        size = facts.lengths
        about = "prompts" if rows.what == "prompts" else "prompt and answers"
        lines += [f"{about} of {size.mean:.0f} tokens on average, {size.longest:,} at most"]
    return lines


def _steps(config: RunConfig, facts: DryRun) -> list[str]:
    trainer: Any = config.trainer
    if facts.steps is None:
        return ["as many as the data makes"]
    if hasattr(trainer, "prompts_per_step"):
        text = f"{trainer.prompts_per_step:,} prompts x {trainer.group_size} completions"
        updates = getattr(trainer, "updates_per_step", None) or getattr(trainer, "updates", None)
        return [
            f"{facts.steps:,}, each of {text}" + (f" and {updates} update{'s' * (updates != 1)}" if updates else "")
        ]
    return [f"{facts.steps:,}, each of {trainer.batch_size:,} examples ({trainer.epochs:g} epochs)"]


def _tokens(config: RunConfig, facts: DryRun) -> list[str]:
    trainer: Any = config.trainer
    size, steps = facts.lengths, facts.steps
    if steps is None:
        return ["unknown"]
    if hasattr(trainer, "prompts_per_step"):
        completions = steps * trainer.rollout_batch_size * getattr(trainer, "rollout_batches", 1)
        most = completions * trainer.sampling.max_tokens
        prompts = f", {_count(completions * size.prompt)} of prompts" if size is not None else ""
        return [f"at most {_count(most)} sampled ({trainer.sampling.max_tokens} per completion){prompts}"]
    if size is None:
        return ["unknown before the rows are read"]
    return [f"about {_count(steps * trainer.batch_size * size.mean)} trained on, prompts included"]


def _memory(facts: DryRun, world_size: int) -> list[str]:
    parts = {name: size for name, size in facts.memory.items() if size}
    each = " in each process" if world_size > 1 else ""
    return [
        f"about {readable(sum(parts.values()))}{each} (an estimate, and a lower bound)",
        ", ".join(f"{name} {readable(size)}" for name, size in parts.items()),
        f"not counted: {NOT_COUNTED}",
    ]


def _settings(resolved: Any, registry: Registry) -> Iterator[str]:
    """Settings that differ from the defaults of this algorithm, and those that its recipe brings along."""
    every = origins(resolved)
    defaults = _defaults(resolved.config, registry)
    own = [row for row in every if _differs(row, defaults)]
    if own:
        yield f"\n{len(own)} setting{'s differ' if len(own) > 1 else ' differs'} from the default:"
    for row in own:
        default = f"; default {_short(defaults[row.key].value)}" if row.key in defaults else ""
        yield f"  {row.key} = {_short(row.value)}  ({row.origin}{default})"
    recipes = [
        row for row in every if row not in own and ("recipe of " in row.origin or row.origin.startswith("data "))
    ]
    for origin in dict.fromkeys(row.origin for row in recipes):
        yield f"\n{origin}:"
        yield from (f"  {row.key} = {_short(row.value)}" for row in recipes if row.origin == origin)


def _differs(row: Row, defaults: Mapping[str, Row]) -> bool:
    """Whether a value is not the default; of a section that is empty by default, what the user says."""
    if row.key in defaults:
        return defaults[row.key].value != row.value
    return bool(defaults) and row.origin.startswith(("--", "config "))


def _defaults(config: RunConfig, registry: Registry) -> dict[str, Row]:
    """Every value as it would be if only algorithm, model, data and components were chosen; {} if they need more."""
    from rlhf_core.config.load import resolve_labelled

    slots = ("trainer", "loss", "advantage", "reward", "rollout", "agent", "strategy")
    parts = {slot: getattr(config, slot) for slot in slots}
    chosen: dict[str, Any] = {slot: {"name": part.name} for slot, part in parts.items() if part is not None}
    needed = {slot: _required(part) for slot, part in parts.items() if part is not None}
    chosen = {slot: {**section, **needed[slot]} for slot, section in chosen.items()}
    chosen["model"] = {"path": config.model.path}
    chosen["dataset"] = {"sources": [{"source": s.source.model_dump()} for s in config.dataset.sources]}
    try:
        return {row.key: row for row in origins(resolve_labelled(registry, sugar=chosen))}
    except UserError:
        return {}


def _required(part: Any) -> dict[str, Any]:
    """Settings without a default, which there is nothing to compare with."""
    return {name: getattr(part, name) for name, field in type(part).model_fields.items() if field.is_required()}


def _short(value: Any) -> str:
    import json

    from rlhf_core.cli.common import shorten

    return shorten(json.dumps(value, ensure_ascii=False))


def _count(number: float) -> str:
    """A number for people. Example: ``1.4 M``"""
    for limit, unit in ((1e9, " G"), (1e6, " M")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{round(number):,}"

"""The plan of a run to go on with: unchanged, or extended by the settings that may change."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_core.config.load import read_yaml
from rlhf_core.config.plan import Plan, digest_of, reload
from rlhf_core.config.run import RunConfig
from rlhf_core.data.atomic import write_json, write_text
from rlhf_core.data.jsonl import read_record
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.read import saved_steps
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import ConfigError, RunDirError, bullets

log = logging.getLogger("rlhf")
ChangeConfig = Callable[[Mapping[str, Any]], RunConfig]
LENGTHS = ("trainer.steps", "trainer.max_steps", "trainer.epochs")
"""How long a run is; they may only rise."""
CHANGEABLE = (*LENGTHS, "trainer.eval_every", "trainer.checkpoint_every", "trainer.keep_checkpoints")
"""Settings that a run may go on with at another value, beside those of :data:`GROUPS`."""
GROUPS = ("trainer.deadlines", "strategy")
"""Settings below them may change as well."""

PROCESSES = "processes"
"""How many there are is no setting, but may change as well."""

Change = tuple[str, Any, Any]
"""Dotted key, old value, new value."""


def planned_resume(
    run_dir: Path, change: ChangeConfig | None, registry: Registry, world_size: int | None = None
) -> tuple[Plan, RunConfig]:
    """The plan of the run to go on with, and its configuration; the registry is frozen afterwards.

    The plan is extended by what ``change`` makes of its configuration, which may differ in how long the run is, in what
    is done beside its steps and in its strategy, and by another number of processes.

    Raises:
        RunDirError: no run there, or the configuration differs in what may not change (every difference is listed).
    """
    plan = _read_plan(run_dir)
    config = reload(registry, plan)
    _note_edited_settings(plan, run_dir / "config.yaml")
    changes: list[Change] = []
    if change is not None:
        wanted = change(plan.config)
        changes = differences(config.model_dump(mode="json"), wanted.model_dump(mode="json"))
        _refuse(changes, run_dir)
        config = wanted if changes else config
    if world_size is not None and world_size != plan.world_size:
        changes.append((PROCESSES, plan.world_size, world_size))
        plan = replace(plan, world_size=world_size)
    if changes:
        plan = extended(plan, config, changes, run_dir)
    registry.freeze()
    return plan, config


def _read_plan(run_dir: Path) -> Plan:
    path = run_dir / "plan.json"
    if not path.is_file():
        raise RunDirError(
            f"'{run_dir}' holds no run to resume", why="plan.json is not there", fix="check --resume; rlhf runs list"
        )
    values = read_record(path)
    digest = values.pop("digest", None)
    if digest is None:
        log.warning("'%s' has no digest: nobody can tell whether it was edited", path)
    elif digest != digest_of(values):
        raise RunDirError(
            f"'{path}' is not what the run wrote",
            why="it was edited or damaged since; its digest is another",
            fix="put it back. What may change is given to rlhf train --resume as --set KEY=VALUE; the rest needs a new "
            "run, with another --run-dir",
        )
    return Plan.read(path)


def _note_edited_settings(plan: Plan, file: Path) -> None:
    """Warn of settings in a run's ``config.yaml`` that are not those of its plan: only people read that file."""
    try:
        edited = differences(plan.config, read_yaml(file)) if file.exists() else []
    except ConfigError as error:
        log.warning("'%s' is not used, plan.json is: %s", file, " ".join(f"{error.what} {error.why}".split()))
        return
    if edited:
        key, planned, written = edited[0]
        log.warning("'%s' has %s %s: not used; plan.json has %s", file, key, written, planned)


def _refuse(changes: Sequence[Change], run_dir: Path) -> None:
    rows = [f"{key}: {old!r} -> {new!r}" for key, old, new in changes if not may_change(key)]
    if not rows:
        return
    raise RunDirError(
        f"the configuration differs from the run to be resumed:{bullets(rows)}",
        where=str(run_dir),
        why=f"a resumed run keeps its settings; only {', '.join((*CHANGEABLE, *GROUPS))} may change",
        fix="resume without these settings, or start a new run with another --run-dir",
    )


def differences(old: Any, new: Any, key: str = "") -> list[Change]:
    """Dotted keys whose values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            row
            for k in sorted({*old, *new}, key=str)
            for row in differences(old.get(k), new.get(k), f"{key}.{k}" if key else str(k))
        ]
    return [] if old == new else [(key, old, new)]


def may_change(key: str) -> bool:
    """Whether a run may go on with another value of a setting."""
    return key in CHANGEABLE or any(key.startswith(f"{group}.") for group in GROUPS)


def extended(plan: Plan, config: RunConfig, changes: Sequence[Change], run_dir: Path) -> Plan:
    """The plan with changed settings, and a record of what they were."""
    newest = max(saved_steps(run_dir), default=None)
    for key, old, new in changes:
        if key in LENGTHS and _steps(new) < _steps(old):
            made = "" if newest is None else f"; {newest} steps are made"
            raise RunDirError(
                f"{key} can only be raised: {old} -> {new}",
                where=str(run_dir),
                why=f"a resumed run continues{made}",
                fix="give a larger value, or none; Ctrl-C ends a run early",
            )
    if newest is None:
        raise RunDirError(
            f"'{run_dir}' has no checkpoint to continue from",
            where=str(run_dir / "checkpoints"),
            fix="resume it without other settings, or start a new run with another --run-dir",
        )
    row = {
        "at_step": newest,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "changes": {key: [old, new] for key, old, new in changes},
    }
    return replace(plan, config=config.model_dump(mode="json"), extensions=(*plan.extensions, row))


def record(run: RunDir, plan: Plan) -> list[str]:
    """Let the run's folder hold an extended plan, if it is one; what that means is returned, a sentence each."""
    import yaml

    stored = Plan.read(run.plan)
    if len(plan.extensions) <= len(stored.extensions):
        return []
    summary = read_record(run.summary) if run.summary.is_file() else {}
    run.summary.unlink(missing_ok=True)  # first: a run without one is resumed, with whichever plan there is
    write_json(run.plan, plan.to_json())
    write_text(run.path / "config.yaml", yaml.safe_dump(dict(plan.config), sort_keys=False))
    return meaning(plan, summary)


def meaning(plan: Plan, summary: Mapping[str, Any]) -> list[str]:
    """What the newest extension of a plan does, and in what the run will differ from one without an interruption."""
    row, trainer = plan.extensions[-1], plan.config["trainer"]
    changes: Mapping[str, Sequence[Any]] = row["changes"]
    changed = ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changes.items())
    texts = [f"extended after step {row['at_step']}: {changed}"]
    lengths = {key: change for key, change in changes.items() if key in LENGTHS}
    schedule = trainer.get("optimizer", {}).get("schedule", "constant")
    if lengths and schedule != "constant":
        spans = ", ".join(f"{key} {new}" for key, (_, new) in lengths.items())
        texts.append(
            f"the {schedule} learning rate now spans {spans}: it goes on from where that schedule is at the next step. "
            "The steps that are made used the shorter span, so the run differs from an uninterrupted one"
        )
    moved = [key for key in changes if key.startswith("strategy.") and key != "strategy.timeout_s"]
    rounded = [key for key in moved if key.endswith("_dtype") and not {"float32", None}.issuperset(changes[key])]
    if rounded:
        texts.append(
            f"{' and '.join(rounded)} is another from the next step on: weights or gradients are rounded otherwise, by "
            "more than the order of sums"
        )
    if PROCESSES in changes or moved:
        texts.append("sums are formed in another order from the next step on: weights differ by rounding")
    if lengths and (trainer.get("rollouts") or {}).get("max_staleness", 0) > 0:
        texts.append(
            "rollouts are sampled ahead: nothing was sampled beyond the earlier end, so the next rollouts are fresher "
            "than an uninterrupted run's"
        )
    if lengths and (trainer.get("beta_schedule") or {}).get("kind", "constant") != "constant":
        texts.append("beta's schedule spans the new length too, from the next step on")
    if lengths and _cut_batch(trainer, summary, changes, row["at_step"]):
        texts.append(
            "the last batch so far was smaller than trainer.batch_size, as the data ended with it; an uninterrupted "
            "run would have filled it"
        )
    return texts


def _cut_batch(
    trainer: Mapping[str, Any], summary: Mapping[str, Any], changes: Mapping[str, Sequence[Any]], steps: int
) -> bool:
    """Whether the run's last update had fewer examples than the others; only offline runs can."""
    size, count = int(trainer.get("batch_size") or 0), int(summary.get("train_examples") or 0)
    epochs = float(changes["trainer.epochs"][0] if "trainer.epochs" in changes else trainer.get("epochs") or 0)
    return bool(size and count and epochs) and steps * size > max(1, round(count * epochs))


def _steps(value: float | None) -> float:
    """None sets no limit."""
    return math.inf if value is None else value

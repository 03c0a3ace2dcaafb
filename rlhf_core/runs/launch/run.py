"""From a configuration to a finished run: plan, preflight, run directory, processes."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config.plan import Plan, make_plan
from rlhf_core.config.run import RunConfig
from rlhf_core.data.jsonl import read_record
from rlhf_core.data.manifest import find_damage
from rlhf_core.models.sources import resolve_model
from rlhf_core.plugins.component_calls import component_errors, label_for
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.hooks import HookBus, Launch, PlanResolved, RunEnd
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch.inputs import check_inputs, inputs
from rlhf_core.runs.launch.inputs import pinned as pinned
from rlhf_core.runs.launch.launched import RankZeroLauncher
from rlhf_core.runs.launch.process import environment, set_up_torch
from rlhf_core.runs.launch.process import run_plan as run_plan
from rlhf_core.runs.launch.process_end import sigterm_as_interrupt
from rlhf_core.runs.launch.ranks import resume_command
from rlhf_core.runs.launch.resume import planned_resume as planned_resume
from rlhf_core.runs.launch.resume import record
from rlhf_core.runs.launch.rows import with_rows as with_rows
from rlhf_core.runs.launch.rows import with_steps as with_steps
from rlhf_core.runs.read import locked_run_dir
from rlhf_core.runs.run_dir import RunDir, first_missing
from rlhf_core.runs.work import Display
from rlhf_core.types.errors import ComponentError, PluginError, RlhfError, error_text

log = logging.getLogger("rlhf")


def plan_run(registry: Registry, hooks: HookBus, config: RunConfig, nproc: int) -> Plan:
    """Resolve the plan and tell the hooks; the registry is frozen afterwards."""
    plan = make_plan(registry, config, nproc)
    hooks.fire("rlhf_plan_resolved", PlanResolved(plan.to_json()))
    return plan


def preflight(registry: Registry, config: RunConfig, world_size: int, *, dry_run: bool = False) -> BuildContext:
    """Let every selected component check its settings; nothing heavy is imported, nothing downloaded if ``dry_run``.
    What is returned holds the rows that were read for it.
    """
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, world_size=world_size, dry_run=dry_run)
    random.seed(config.seed)  # for a data set that draws its rows without a generator of its own
    np.random.seed(config.seed % 2**32)
    for kind, component in config.components():
        try:
            with component_errors(label_for(kind, component, registry), "preflight()"):
                component.preflight(ctx)
        except ComponentError as error:
            raise PluginError(error.what, where=error.where, fix=error.fix) from error.__cause__
    resolve_model(config.model.path)
    return ctx


def launch(
    plan: Plan,
    config: RunConfig,
    registry: Registry,
    hooks: HookBus,
    run_dir: Path,
    datasets: Any,
    *,
    resume: bool,
    display: Display,
    rank_0: RankZeroLauncher | None = None,
) -> Mapping[str, Any]:
    """Run the plan in this process, or start one process per rank and wait. A run in this process takes the rows that
    ``datasets`` has read for its checks.
    """
    run = RunDir(run_dir)
    first_new_folder = first_missing(run_dir)
    with contextlib.ExitStack() as stack:
        if resume:
            stack.enter_context(locked_run_dir(run_dir))
            check_inputs(plan.inputs, config, run_dir, display.say)
            for text in record(run, plan):
                display.say(text)
            if (summary := completed(run)) is not None:
                display.say(f"'{run_dir}' is complete: nothing is left to do; --set trainer.steps=N makes it longer")
                return summary
        here = plan.world_size == 1 or rank_0 is not None
        if here:  # a process that only starts the ranks and waits needs no kernels
            set_up_torch(config)
        stack.enter_context(sigterm_as_interrupt())
        if resume:
            run.stop.unlink(missing_ok=True)
            run.failure.unlink(missing_ok=True)
        else:
            plan = replace(plan, inputs=inputs(config, run_dir, display.say))
            run.create(plan, environment())
            stack.enter_context(locked_run_dir(run_dir))
        hint = resume_command(run_dir) if rank_0 is None else rank_0.resume_hint(run_dir)
        failure: BaseException | None = None
        try:
            if rank_0 is not None:
                rank_0.agree(plan, config, run, resume=resume)
            if here:
                return run_plan(
                    plan, config, registry, hooks, run_dir, datasets, resume=resume, display=display, resume_hint=hint
                )
            return _run_ranks(plan, config, hooks, run, resume)
        except BaseException as error:
            failure = error
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted:
                display.say(hint if run.begun() else "stopped before the first step")
            if not resume and (interrupted or getattr(error, "exit_code", 1) == 2):
                run.discard_unused(first_new_folder)
            raise
        finally:
            run.stop.unlink(missing_ok=True)
            _closed(run, hooks, failure)


def _closed(run: RunDir, hooks: HookBus, failure: BaseException | None) -> None:
    """Call ``rlhf_run_closed``; a listener that fails hides no failure of the run."""
    if not run.plan.is_file():
        return
    stopped = isinstance(failure, KeyboardInterrupt) or getattr(failure, "exit_code", 1) == 130
    if failure is not None:
        event = RunEnd(run.path, "interrupted" if stopped else "failed", error_text(failure))
    else:
        summary = read_record(run.summary) if run.summary.is_file() else {}
        event = RunEnd(run.path, str(summary.get("status", "completed")), summary=summary)
    try:
        hooks.notes += map(str, hooks.fire("rlhf_run_closed", event))
    except RlhfError as error:
        if failure is None:
            raise
        log.warning("%s", error)


def completed(run: RunDir) -> Mapping[str, Any] | None:
    """The summary of a run that has made all its steps and still has its final model as it was written."""
    if not (run.summary.is_file() and run.final.is_dir()):
        return None
    summary = read_record(run.summary)
    if summary.get("status") != "completed":
        return None
    damage = find_damage(run.final)
    if damage:
        log.warning("'%s' is damaged (%s): it is written again from the last checkpoint", run.final, damage[0])
    return None if damage else summary


def _run_ranks(plan: Plan, config: RunConfig, hooks: HookBus, run: RunDir, resume: bool) -> Mapping[str, Any]:
    """Start one process per rank, unless a hook does, and wait; the new summary is returned."""
    import torch

    from rlhf_core.runs.launch.ranks import RankFailed, run_ranks

    earlier_summary = run.summary.stat().st_mtime_ns if run.summary.exists() else 0
    try:
        code = hooks.launch(Launch(run.plan, plan.world_size))
        if code is None:
            flags = {"--resume": resume, "--strict": hooks.strict, "--no-plugins": not hooks.enabled}
            cuda = torch.cuda.is_available() and getattr(config.strategy, "device", "auto") != "cpu"
            run_ranks(run, plan.world_size, [flag for flag, is_set in flags.items() if is_set], cuda)
        elif code != 0:
            raise RankFailed(code, {}, run.path)
    except (RankFailed, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt) or error.exit_code == 130
        run.record_failure("interrupted" if interrupted else "failed", error)
        raise
    if not run.summary.exists() or run.summary.stat().st_mtime_ns == earlier_summary:
        raise RlhfError(
            f"the launcher ended without an error, yet '{run.path}' has no new summary.json",
            why="the ranks still run elsewhere, or failed without a message",
            fix=f"look at their output; rlhf runs show {run.path}",
        )
    return read_record(run.summary)

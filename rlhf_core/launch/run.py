"""From a configuration to a finished run: preflight, run directory, processes."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config.run import RunConfig
from rlhf_core.context import BuildContext
from rlhf_core.errors import RlhfError, RunDirError
from rlhf_core.hooks import HookBus, Launch, PlanResolved
from rlhf_core.plan import Plan, make_plan, reload, walk_components
from rlhf_core.registry import Registry, check_component
from rlhf_core.runs.run_dir import RunDir, check_writable, first_missing

Say = Callable[[str], None]
Progress = Callable[[int, int | None, Mapping[str, float]], None]
"""Step, steps in all where known, metrics."""
Change = Callable[[Mapping[str, Any]], RunConfig]


def plan_run(registry: Registry, hooks: HookBus, config: RunConfig, nproc: int) -> Plan:
    """Resolve the plan and tell the hooks; the registry is frozen afterwards."""
    plan = make_plan(registry, config, nproc)
    hooks.fire("rlhf_plan_resolved", PlanResolved(plan.to_json()))
    return plan


def preflight(registry: Registry, config: RunConfig, world_size: int, *, dry_run: bool = False) -> None:
    """Let every selected component check its settings; nothing heavy is imported, nothing downloaded if ``dry_run``.

    Raises:
        UserError: the first thing that cannot work.
    """
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, world_size=world_size, dry_run=dry_run)
    for _, part in walk_components(config):
        part.preflight(ctx)


def planned_resume(run_dir: Path, change: Change | None, registry: Registry) -> tuple[Plan, RunConfig]:
    """The plan of the run to go on with.

    Args:
        run_dir: folder of the earlier run.
        change: maps the run's configuration to what the command line makes of it, if it says anything; it must not
            differ.

    Raises:
        RunDirError: no run there, or the configuration differs (every difference is listed).
    """
    path = run_dir / "plan.json"
    if not path.is_file():
        raise RunDirError(
            f"'{run_dir}' holds no run to resume", why="plan.json is not there", fix="check --resume; rlhf runs list"
        )
    try:
        plan = Plan.read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RunDirError(
            f"the plan of '{run_dir}' is damaged", where=str(path), why=why, fix="start a new run"
        ) from error
    if change is not None:
        rows = differences(plan.config, change(plan.config).model_dump(mode="json"))
        if rows:
            rows = [*rows[:8], *([f"and {len(rows) - 8} more"] if len(rows) > 8 else [])]
            raise RunDirError(
                "the configuration differs from the run to be resumed:\n  - " + "\n  - ".join(rows),
                where=str(run_dir),
                fix="resume without these settings, or start a new run with another --run-dir",
            )
    config = reload(registry, plan)
    registry.freeze()
    return plan, config


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """Dotted keys whose values differ, as ``key: old -> new``."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            row
            for k in sorted({*old, *new})
            for row in differences(old.get(k), new.get(k), f"{key}.{k}" if key else str(k))
        ]
    return [] if old == new else [f"{key}: {old!r} -> {new!r}"]


def launch(
    plan: Plan,
    config: RunConfig,
    registry: Registry,
    hooks: HookBus,
    run_dir: Path,
    *,
    resume: bool,
    say: Say,
    progress: Progress,
) -> Mapping[str, Any]:
    """Run the plan in this process, or start one process per rank and wait.

    Returns:
        The summary.

    Raises:
        RlhfError: the run failed.
    """
    run, fresh = RunDir(run_dir), not resume
    made = first_missing(run_dir)
    if resume and (done := _completed(run)) is not None:
        say(f"'{run_dir}' is complete: nothing is left to do")
        return done
    set_up_torch(config)
    if fresh:
        run.create(plan, environment())
    else:
        run.stop.unlink(missing_ok=True)
        run.failure.unlink(missing_ok=True)
    try:
        if plan.world_size == 1:
            return run_plan(plan, config, registry, hooks, run_dir, resume=resume, say=say, progress=progress)
        return _run_several(plan, config, hooks, run, resume)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted:
            say(f"go on with: rlhf train --resume {run_dir}" if run.begun() else "stopped before the first step")
        if fresh and (interrupted or getattr(error, "exit_code", 1) == 2):
            run.discard_unused(made)
        raise
    finally:
        run.stop.unlink(missing_ok=True)


def _completed(run: RunDir) -> Mapping[str, Any] | None:
    """The summary of a run that has made all its steps and still has its final model."""
    import json

    if not (run.summary.is_file() and run.final.is_dir()):
        return None
    summary = json.loads(run.summary.read_text())
    return summary if summary.get("status") == "completed" else None


def _run_several(plan: Plan, config: RunConfig, hooks: HookBus, run: RunDir, resume: bool) -> Mapping[str, Any]:
    """Start one process per rank, unless a hook does, and wait."""
    import json

    import torch

    from rlhf_core.launch.ranks import RankFailed, run_ranks

    before = run.summary.stat().st_mtime_ns if run.summary.exists() else 0
    try:
        code = hooks.launch(Launch(run.plan, plan.world_size))
        if code is None:
            flags = {"--resume": resume, "--strict": hooks.strict, "--no-plugins": not hooks.enabled}
            cuda = torch.cuda.is_available() and getattr(config.strategy, "device", "auto") != "cpu"
            run_ranks(run, plan.world_size, [flag for flag, wanted in flags.items() if wanted], cuda)
        elif code != 0:
            raise RankFailed(code, {}, run.path)
    except RankFailed as error:
        run.record_failure("interrupted" if error.exit_code == 130 else "failed", error)
        raise
    except KeyboardInterrupt as error:
        run.record_failure("interrupted", error)
        raise
    if not run.summary.exists() or run.summary.stat().st_mtime_ns == before:
        raise RlhfError(
            f"the launcher ended without an error, yet '{run.path}' has no new summary.json",
            why="the ranks were started elsewhere and are not done, or they failed unseen",
            fix=f"look at their output; rlhf runs show {run.path}",
        )
    return json.loads(run.summary.read_text())


def run_plan(
    plan: Plan,
    config: RunConfig,
    registry: Registry,
    hooks: HookBus,
    run_dir: Path,
    *,
    resume: bool,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Mapping[str, Any]:
    """Build strategy, session and trainer in this process, and run."""
    from rlhf_core.runs.session import RunSession

    set_up_torch(config)
    rank = int(os.environ.get("RANK", "0"))
    ctx = BuildContext(
        config=config, registry=registry, seed=config.seed, run_dir=run_dir, rank=rank, world_size=plan.world_size
    )
    if not resume and rank == 0:
        check_writable(run_dir)
    chosen = config.strategy
    assert chosen is not None, "the defaults name a strategy"
    strategy = chosen.build(ctx)
    check_component("strategy", strategy, chosen.name)
    session = RunSession(RunDir(run_dir), plan, strategy, hooks, resume=resume, environment=environment())
    session.say, session.progress = say or session.say, progress or session.progress
    ctx = ctx.with_(strategy=strategy, session=session)
    with contextlib.ExitStack() as closing:
        closing.callback(getattr(strategy, "close", lambda: None))
        closing.callback(session.close)
        trainer = config.trainer.build(ctx)
        check_component("trainer", trainer, config.trainer.name)
        closing.callback(getattr(trainer, "close", lambda: None))
        if rank == 0:
            session.trackers = [session.parts.build("tracker", t, ctx) for t in config.trackers]
        session.monitors = [session.parts.build("monitor", m, ctx) for m in config.monitors]
        return trainer.run()


def set_up_torch(config: RunConfig) -> None:
    """Threads, matrix products and determinism."""
    import torch

    from rlhf_core.kernels.matmul import use_products

    use_products(config.matmul)
    if config.threads:
        torch.set_num_threads(config.threads)
    elif "OMP_NUM_THREADS" not in os.environ and not torch.cuda.is_available():
        ahead = getattr(getattr(config.trainer, "rollouts", None), "max_staleness", 0) > 0
        torch.set_num_threads(max(1, _torchs_threads() // (2 if ahead else 1)))  # who samples shares with who learns
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    # every buffer is written before it is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def _torchs_threads() -> int:
    """As they were before the first run of this process."""
    import torch

    return torch.get_num_threads()


def environment() -> dict[str, Any]:
    """Facts about this machine, for ``environment.json``; no variables, no secrets."""
    import platform

    from rlhf_core.plan import library_versions

    facts = {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "versions": library_versions(),
    }
    if "torch" in sys.modules:
        import torch

        cuda = torch.cuda.is_available()
        facts |= {
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        }
    return facts

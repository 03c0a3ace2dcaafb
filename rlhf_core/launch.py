"""From a configuration to a finished run: preflight, run directory, processes."""

from __future__ import annotations

import os
import subprocess
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
from rlhf_core.runs.run_dir import RunDir, check_writable

Say = Callable[[str], None]
Progress = Callable[[int, Mapping[str, float]], None]
Change = Callable[[Mapping[str, Any]], RunConfig]


def plan_run(registry: Registry, hooks: HookBus, config: RunConfig, nproc: int) -> Plan:
    """Resolve the plan and tell the hooks; the registry is frozen afterwards."""
    plan = make_plan(registry, config, nproc)
    hooks.fire("rlhf_plan_resolved", PlanResolved(plan.to_json()))
    return plan


def preflight(registry: Registry, config: RunConfig, world_size: int) -> None:
    """Let every selected component check its settings; nothing heavy is imported.

    Raises:
        UserError: the first thing that cannot work.
    """
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, world_size=world_size)
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
        raise RunDirError(f"the plan of '{run_dir}' is damaged", where=str(path), why=why,
                          fix="start a new run") from error
    if change is not None:
        rows = differences(plan.config, change(plan.config).model_dump(mode="json"))
        if rows:
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
    if plan.world_size == 1:
        return run_plan(plan, config, registry, hooks, run_dir, resume=resume, say=say, progress=progress)
    if not resume:
        check_writable(run_dir)
        RunDir(run_dir).create(plan, environment())
    code = hooks.launch(Launch(run_dir / "plan.json", plan.world_size))
    code = start_processes(run_dir, plan.world_size, resume, hooks) if code is None else code
    if code != 0:
        failure = ChildFailed(code, run_dir)
        RunDir(run_dir).record_failure("failed", failure)
        raise failure
    import json

    return json.loads((run_dir / "summary.json").read_text())


class ChildFailed(RlhfError):
    """A rank failed; its own message is above."""

    def __init__(self, code: int, run_dir: Path) -> None:
        self.exit_code = code if code in (1, 2, 130) else 1
        super().__init__(
            f"a process of the run ended with code {code}",
            where=str(run_dir),
            fix=f"its message is above; go on with: rlhf train --resume {run_dir}",
        )


def start_processes(run_dir: Path, nproc: int, resume: bool, hooks: HookBus) -> int:
    """Start the ranks with torchrun (CPU) or ``accelerate launch`` (GPU) and return the exit code.

    ``accelerate launch --cpu --num_processes 2`` silently runs one process, hence torchrun there; every
    worker compares WORLD_SIZE with the plan.
    """
    import torch

    command = [sys.executable, "-m"]
    if torch.cuda.is_available():
        command += [
            "accelerate.commands.launch",
            "--num_processes",
            str(nproc),
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
            "--multi_gpu",
        ]
    else:
        command += ["torch.distributed.run", "--standalone", "--nproc_per_node", str(nproc)]
    flags = {"--resume": resume, "--strict": hooks.strict, "--no-plugins": not hooks.enabled}
    command += ["-m", "rlhf_core.worker", str(run_dir), *(flag for flag, wanted in flags.items() if wanted)]
    threads = str(max(1, (os.cpu_count() or 1) // nproc))
    return subprocess.run(command, env={"OMP_NUM_THREADS": threads, **os.environ}, check=False).returncode


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
    from rlhf_core.trainers.session import Session

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
    session = Session(RunDir(run_dir), plan, strategy, hooks, resume=resume, environment=environment())
    session.say, session.progress = say or session.say, progress or session.progress
    ctx = ctx.with_(strategy=strategy, session=session)
    trainer = config.trainer.build(ctx)
    check_component("trainer", trainer, config.trainer.name)
    if rank == 0:
        session.trackers = [t.build(ctx) for t in config.trackers]
    session.monitors = [m.build(ctx) for m in config.monitors]
    try:
        return trainer.run()
    finally:
        for part in (trainer, strategy):
            if callable(getattr(part, "close", None)):
                part.close()


def set_up_torch(config: RunConfig) -> None:
    """Threads and determinism."""
    import torch

    if config.threads:
        torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    # every buffer is written before it is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


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

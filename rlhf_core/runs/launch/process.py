"""A planned run in this process, which is the only one or one rank of several."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config.plan import Plan, library_versions
from rlhf_core.config.run import RunConfig
from rlhf_core.distributed.checked import checked_strategy
from rlhf_core.plugins.component_calls import component_errors, label_for, time_limit
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.hooks import HookBus
from rlhf_core.plugins.registry import Registry, check_component
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.runs.launch.ranks import resume_command
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.runs.work import Display
from rlhf_core.types.errors import ComponentError, DeadlineExceeded, UserError

log = logging.getLogger("rlhf.launch")


def run_plan(
    plan: Plan,
    config: RunConfig,
    registry: Registry,
    hooks: HookBus,
    run_dir: Path,
    datasets: Any = None,
    *,
    resume: bool,
    display: Display | None = None,
    resume_hint: str = "",
) -> Mapping[str, Any]:
    """Build strategy, session and trainer in this process, and run; ``datasets`` hold the rows if they are read."""
    from rlhf_core.models.random_state import seed_everything
    from rlhf_core.runs.session import RunSession

    set_up_torch(config)
    rank = int(os.environ.get("RANK", "0"))
    ctx = BuildContext(
        config=config, registry=registry, seed=config.seed, run_dir=run_dir, rank=rank, world_size=plan.world_size
    )
    strategy = _join_ranks(config, ctx) if plan.world_size > 1 else _build_strategy(config, ctx)
    session = RunSession(
        RunDir(run_dir),
        plan,
        strategy,
        hooks,
        resume_hint=resume_hint or resume_command(run_dir),
        resume=resume,
        environment=environment(),
        deadlines=getattr(config.trainer, "deadlines", None),
        display=display,
    )
    ctx = ctx.with_(strategy=strategy, session=session, datasets=datasets)
    with contextlib.ExitStack() as closing:
        closing.enter_context(session.watchdog.active())
        closing.callback(getattr(strategy, "close", lambda: None))
        closing.callback(session.close)
        with time_limit("build", f"building trainer '{config.trainer.name}', with its model and data"):
            label = label_for("trainer", config.trainer, registry)
            with component_errors(label, "build()"):
                seed_everything(config.seed)
                trainer = config.trainer.build(ctx)
        check_component("trainer", trainer, label)
        closing.callback(getattr(trainer, "close", lambda: None))
        if rank == 0:
            session.metrics.trackers = [session.components.build("tracker", t, ctx) for t in config.trackers]
        session.metrics.monitors = [session.components.build("monitor", m, ctx) for m in config.monitors]
        return trainer.run()


def _join_ranks(config: RunConfig, ctx: BuildContext) -> Any:
    """The strategy, once a number of every rank was added up over it."""
    rank_name = f"rank {ctx.rank} on {platform.node()}"
    with named_rank(f"joining {ctx.world_size} ranks", rank_name):
        strategy = _build_strategy(config, ctx)
    check_all_reduce(strategy, rank_name)
    return strategy


@contextlib.contextmanager
def named_rank(what: str, rank_name: str) -> Generator[None, None, None]:
    """Ranks join each other, or exchange their first number. Errors of other kinds pass as they are."""
    from rlhf_core.distributed.peers import LOST

    try:
        yield
    except (RuntimeError, DeadlineExceeded) as error:
        cause = error.__cause__ if isinstance(error, (ComponentError, DeadlineExceeded)) else error
        if not any(word in str(cause).lower() for word in LOST):
            raise
        reason = str(cause).splitlines()[0]
        raise UserError(
            f"{rank_name}: {what} failed",
            why=f"{error.what} ({reason})" if isinstance(error, DeadlineExceeded) else reason,
            fix="name the network interface that the machines share in GLOO_SOCKET_IFNAME (CPU) or NCCL_SOCKET_IFNAME "
            "(GPU; NCCL_DEBUG=INFO says more) and open its ports; strategy.timeout_s is the deadline",
        ) from error


def check_all_reduce(strategy: Strategy, rank_name: str) -> None:
    """Add a number of every rank, as gradients are added later."""
    ranks = strategy.world_size
    with named_rank(f"an all-reduce over {ranks} ranks", rank_name):
        total = strategy.sum_over_ranks([strategy.rank + 1.0])[0]
    if total != ranks * (ranks + 1) / 2:
        raise UserError(
            f"{rank_name}: the numbers of {ranks} ranks add up to {total:g}, not to {ranks * (ranks + 1) / 2:g}",
            why="the process group or the strategy does not connect the ranks of this run",
            fix="check that no other launch uses the same MASTER_ADDR and MASTER_PORT",
        )


def _build_strategy(config: RunConfig, ctx: BuildContext) -> Any:
    assert config.strategy is not None, "the defaults name a strategy"
    label = label_for("strategy", config.strategy, ctx.registry)
    with component_errors(label, "build()"):
        strategy = config.strategy.build(ctx)
    check_component("strategy", strategy, label)
    return checked_strategy(strategy, label, ctx.world_size)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory(keep: bool = True) -> None:
    """Let glibc keep what is freed: every update asks for the same gigabytes again, and each new page costs a fault."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0 if keep else 1 << 16)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1 if keep else 1 << 17)


def set_up_torch(config: RunConfig) -> None:
    """Memory, threads, matrix products and determinism."""
    import torch

    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_core.models.precision import slow_bfloat16

    keep_freed_memory()
    use_matmul_backend(config.matmul)
    slow = slow_bfloat16(config.model_dump())
    if slow and os.environ.get("RANK", "0") == "0":
        log.warning("%s", slow)
    if config.threads:
        torch.set_num_threads(config.threads)
    elif "OMP_NUM_THREADS" not in os.environ and not torch.cuda.is_available():
        ahead = getattr(getattr(config.trainer, "rollouts", None), "max_staleness", 0) > 0
        # sampling ahead and learning share the cores
        torch.set_num_threads(max(1, initial_threads() // (2 if ahead else 1)))
    if config.deterministic and torch.cuda.is_available():
        # cuBLAS reads it when it is first used, and repeats its results with it alone
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    # every buffer is written before it is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def initial_threads() -> int:
    """torch's threads before the first run of this process."""
    import torch

    return torch.get_num_threads()


def environment() -> dict[str, Any]:
    """Facts about this machine, for ``environment.json``; no variables, no secrets."""
    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "versions": library_versions(),
    }
    if "torch" in sys.modules:
        import torch

        facts |= {
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        }
    return facts

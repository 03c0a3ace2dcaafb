"""What starting a run and going on with one share."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.hooks import HookBus
    from rlhf_core.plugins.registry import Registry


@contextlib.contextmanager
def unchanged_process() -> Generator[None, None, None]:
    """Leave the caller's torch settings, random states, logging, signals and environment as they were."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from rlhf_core.models.random_state import preserved_rng

    with contextlib.ExitStack() as stack:
        _keep_torch(stack)
        stack.enter_context(preserved_rng())
        _keep_logging(stack)
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(_set_handler, number, signal.getsignal(number))
        stack.callback(_set_variables, dict(os.environ))
        for shared in (PartialState, AcceleratorState, GradientState):  # one per process, with device and precision
            stack.callback(shared._shared_state.update, dict(shared._shared_state))
            stack.callback(shared._shared_state.clear)
        yield


def _keep_torch(stack: contextlib.ExitStack) -> None:
    import torch

    from rlhf_core.models.layers import matmul
    from rlhf_core.runs.launch.process import keep_freed_memory

    fill: Any = torch.utils.deterministic
    stack.callback(keep_freed_memory, False)
    stack.callback(matmul.use_matmul_backend, "onednn" if matmul.replaced() else "torch")
    stack.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
    stack.callback(setattr, fill, "fill_uninitialized_memory", fill.fill_uninitialized_memory)
    stack.callback(
        torch.use_deterministic_algorithms,
        torch.are_deterministic_algorithms_enabled(),
        warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
    torch.set_grad_enabled(True)


def _keep_logging(stack: contextlib.ExitStack) -> None:
    from transformers.utils import logging as of_transformers

    root, bars = logging.getLogger(), of_transformers.is_progress_bar_enabled()
    stack.callback(of_transformers.enable_progress_bar if bars else of_transformers.disable_progress_bar)
    stack.callback(of_transformers.set_verbosity, of_transformers.get_verbosity())
    stack.callback(root.setLevel, root.level)
    stack.callback(setattr, root, "handlers", list(root.handlers))


def _set_handler(number: int, handler: Any) -> None:
    with contextlib.suppress(ValueError):  # not in the main thread, which alone may set them
        if signal.getsignal(number) is not handler and handler is not None:
            signal.signal(number, handler)


def _set_variables(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


SLOTS = ("reward", "loss", "dataset")
"""Arguments that may be plain Python objects."""


def resume(
    run_dir: Path, objects: Mapping[str, Any], *, progress: bool, settings: Mapping[str, Any] | None = None
) -> None:
    """Go on with a run; see :meth:`~rlhf_core.python_api.run.Run.resume`."""
    from rlhf_core.cli.options import open_plugins
    from rlhf_core.config.load import resolve
    from rlhf_core.python_api.config import read_once, registered
    from rlhf_core.runs.launch.run import planned_resume, with_steps

    if unknown := set(objects) - set(SLOTS):
        raise ConfigError(f"resume() takes no '{min(unknown)}'", why=f"only {', '.join(SLOTS)}", fix="leave it out")
    with unchanged_process(), registered(read_once(objects)):
        registry, hooks = open_plugins()

        def changed(base: Mapping[str, Any]) -> RunConfig:
            return with_steps(registry, resolve(registry, sugar=with_dotted_keys({}, settings or {}), base=base))

        plan, config = planned_resume(run_dir, changed if settings else None, registry)
        launch_in_process(plan, config, registry, hooks, run_dir, resuming=True, progress=progress)


def launch_in_process(
    plan: Plan,
    config: RunConfig,
    registry: Registry,
    hooks: HookBus,
    run_dir: str | Path | None,
    *,
    resuming: bool,
    progress: bool,
) -> Path:
    """Run a plan in this process, from its preflight on; the run's folder is returned."""
    from rlhf_core.cli.common import quiet_libraries
    from rlhf_core.cli.progress import launch_shown
    from rlhf_core.runs.launch.rows import checked_datasets
    from rlhf_core.runs.launch.run import preflight, with_rows

    quiet_libraries()
    ctx = preflight(registry, config, plan.world_size)
    plan = plan if resuming else with_rows(plan, ctx)
    datasets = checked_datasets(ctx) if plan.world_size == 1 else None
    del ctx  # and its rows, where others are read
    folder = Path(run_dir).expanduser() if run_dir is not None else None
    return launch_shown(plan, config, registry, hooks, folder, datasets, resume=resuming, quiet=not progress)[0]


def with_dotted_keys(sections: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with dotted settings put into them."""
    from rlhf_core.config.recipe import merge_settings, nested

    out = dict(sections)
    for key, value in settings.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"settings has the key {key!r}", fix='for example {"trainer.steps": 20}')
        out = merge_settings(out, nested(key, value))
    return out

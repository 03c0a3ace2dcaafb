"""What starting a run and going on with one share."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Generator, Mapping
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
    from rlhf_core.models.random_state import preserved_rng

    with contextlib.ExitStack() as stack:
        stack.callback(_torch())
        stack.enter_context(preserved_rng())
        for remember in (_logging, _signals, _variables, _accelerate):
            stack.callback(remember())
        yield


def _torch() -> Callable[[], None]:
    import torch

    from rlhf_core.models.layers import matmul

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill: Any = torch.utils.deterministic
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()
    filled, grad, replaced = fill.fill_uninitialized_memory, torch.is_grad_enabled(), matmul.replaced()
    torch.set_grad_enabled(True)

    def restore() -> None:
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        fill.fill_uninitialized_memory = filled
        torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
        matmul.use_matmul_backend("onednn" if replaced else "torch")

    return restore


def _logging() -> Callable[[], None]:
    from transformers.utils import logging as of_transformers

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    verbosity, bars = of_transformers.get_verbosity(), of_transformers.is_progress_bar_enabled()

    def restore() -> None:
        root.handlers[:] = handlers
        root.setLevel(level)
        of_transformers.set_verbosity(verbosity)
        (of_transformers.enable_progress_bar if bars else of_transformers.disable_progress_bar)()

    return restore


def _signals() -> Callable[[], None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        with contextlib.suppress(ValueError):  # not in the main thread, which alone may set them
            for number, handler in before.items():
                if signal.getsignal(number) is not handler and handler is not None:
                    signal.signal(number, handler)

    return restore


def _variables() -> Callable[[], None]:
    before = dict(os.environ)

    def restore() -> None:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})

    return restore


def _accelerate() -> Callable[[], None]:
    """accelerate keeps one state per process, with its device and precision; a fresh one stays fresh."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    shared: list[Any] = [PartialState._shared_state, AcceleratorState._shared_state, GradientState._shared_state]
    before = [dict(state) for state in shared]

    def restore() -> None:
        for state, earlier in zip(shared, before):
            state.clear()
            state.update(earlier)

    return restore


SLOTS = ("reward", "loss", "dataset")
"""Arguments that may be plain Python objects."""


def resume(
    run_dir: Path, objects: Mapping[str, Any], *, progress: bool, settings: Mapping[str, Any] | None = None
) -> None:
    """Go on with a run; see :meth:`~rlhf_core.python_api.run.Run.resume`."""
    from rlhf_core.cli.options import open_plugins
    from rlhf_core.config.load import resolve
    from rlhf_core.python_api.object_registry import read_once, registered
    from rlhf_core.runs.launch.run import planned_resume

    if unknown := set(objects) - set(SLOTS):
        raise ConfigError(f"resume() takes no '{min(unknown)}'", why=f"only {', '.join(SLOTS)}", fix="leave it out")
    with unchanged_process(), registered(read_once(objects)):
        registry, hooks = open_plugins()

        def changed(base: Mapping[str, Any]) -> RunConfig:
            return resolve(registry, sugar=with_dotted_keys({}, settings or {}), base=base)

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
    from rlhf_core.runs.launch.run import preflight, with_rows

    quiet_libraries()
    preflight(registry, config, plan.world_size)
    plan = plan if resuming else with_rows(plan, registry, config)
    folder = Path(run_dir).expanduser() if run_dir is not None else None
    return launch_shown(plan, config, registry, hooks, folder, resume=resuming, quiet=not progress)[0]


def with_dotted_keys(sections: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with dotted settings put into them."""
    from rlhf_core.config.recipe import merge_settings, nested

    out = dict(sections)
    for key, value in settings.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"settings has the key {key!r}", fix='for example {"trainer.steps": 20}')
        out = merge_settings(out, nested(key, value))
    return out

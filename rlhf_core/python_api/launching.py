"""What starting a run and going on with one share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.hooks import HookBus
    from rlhf_core.plugins.registry import Registry

SLOTS = ("reward", "loss", "dataset")
"""Arguments that may be plain Python objects."""


def resume(
    run_dir: Path, objects: Mapping[str, Any], *, progress: bool, settings: Mapping[str, Any] | None = None
) -> None:
    """Go on with a run; see :meth:`~rlhf_core.python_api.run.Run.resume`."""
    from rlhf_core.cli.options import open_plugins
    from rlhf_core.config.load import resolve
    from rlhf_core.python_api.object_registry import registered
    from rlhf_core.python_api.rows import read_once
    from rlhf_core.python_api.side_effects import unchanged_process
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
    """Run a plan in this process, from its preflight on; the run's folder is returned.

    Raises:
        UserError: the run cannot work; nothing was trained.
        RlhfError: it failed.
    """
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
    from rlhf_core.config.layers import merge_settings

    out = dict(sections)
    for key, value in settings.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"settings has the key {key!r}", fix='for example {"trainer.steps": 20}')
        first, *rest = key.split(".")
        for part in reversed(rest):
            value = {part: value}
        out = merge_settings(out, {first: value})
    return out

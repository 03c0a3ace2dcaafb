"""The settings of one call of `rlhf discover`: files, options, and what an earlier discovery was run with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError, merge_settings, parse_settings, read_yaml
from rlhf_plugin_discover.config import DiscoverConfig
from rlhf_plugin_discover.folder import PLAN
from rlhf_plugin_discover.tasks import load_task, shipped

if TYPE_CHECKING:
    from rlhf_core.config import Registry
    from rlhf_plugin_discover.config import DiscoverConfig
    from rlhf_plugin_discover.tasks import Task


def options(files: Sequence[str], settings: Sequence[str], judge: str | None) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for file in files:
        merged = merge_settings(merged, with_names(read_yaml(file)))
    if judge:
        merged = merge_settings(merged, {"judge": {"name": judge}})
    return merge_settings(merged, with_names(parse_settings(settings)))


def with_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``judge: NAME`` is short for ``judge: {name: NAME}``, and so is ``verifier``."""
    components = {key: {"name": settings[key]} for key in ("judge", "verifier") if isinstance(settings.get(key), str)}
    return {**settings, **components}


def resumed(folder: Path, name: str | None, settings: Mapping[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
    """Task, the program it began with, and configuration of an earlier discovery, with this call's settings on top."""
    try:
        plan = json.loads((folder / PLAN).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"'{folder}' holds no discovery", why=str(error), fix="name the folder of an earlier one"
        ) from error
    if name not in (None, plan["task"]):
        raise ConfigError(f"'{folder}' looks for '{plan['task']}', not '{name}'", fix="leave the task out")
    merged = merge_settings({**plan["config"], "verifier": plan["verifier"]}, settings)
    return plan["task"], plan.get("starter"), merged


def chosen_task(registry: Registry, name: str | None, verifier: Mapping[str, Any]) -> Task:
    if name is None:
        raise ConfigError(
            "no task is named",
            why=f"shipped: {', '.join(shipped())}",
            fix="rlhf discover kissing ..., or a folder with task.yaml and prompt.md",
        )
    return load_task(name, registry, verifier)


def chosen_config(registry: Registry, settings: Mapping[str, Any]) -> DiscoverConfig:
    if "name" not in (settings.get("judge") or {}):
        judges = ", ".join(sorted({e.name for e in registry.entries("judge")})) or "none installed"
        raise ConfigError(
            "no judge is named to propose programs",
            why=f"judges: {judges}",
            fix="--judge NAME (pip install rlhf-plugin-judge brings local and anthropic), or --baseline",
        )
    return DiscoverConfig.from_settings(settings, registry=registry)

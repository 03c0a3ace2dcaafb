"""A `train` stage as arguments of `rlhf train`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config import ConfigError, RunConfig
from rlhf_plugin_recipes.commands import ask, ask_json
from rlhf_plugin_recipes.files import refuse_unknown

FLAGS = ("unsafe_local_execution", "strict_plugins")
SHORT = ("algo", "config", "set", "nproc", *FLAGS)
FILE = "stage.yaml"
"""What `rlhf train --config` is given."""


def check_keys(settings: Mapping[str, Any], where: str) -> None:
    refuse_unknown(where, settings, (*SHORT, *RunConfig.model_fields))


def config_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    config = {key: value for key, value in settings.items() if key not in SHORT}
    if isinstance(config.get("model"), str):
        config["model"] = {"path": config["model"]}
    if "algo" in settings:
        trainer = config.get("trainer") or {}
        if not isinstance(trainer, Mapping):
            raise ConfigError("algo and trainer are both names", fix="algo: grpo, trainer: {steps: 20}")
        if trainer.get("name", settings["algo"]) != settings["algo"]:
            raise ConfigError(f"algo is {settings['algo']}, trainer.name is {trainer['name']}", fix="drop one")
        config["trainer"] = {**trainer, "name": settings["algo"]}
    return config


def train_arguments(settings: Mapping[str, Any], file: Path) -> list[str]:
    """Arguments of `rlhf train`; ``file`` is written, and read by it after the recipe's own ``config`` files."""
    file.write_text(yaml.safe_dump(config_of(settings), sort_keys=False, allow_unicode=True), encoding="utf-8")
    earlier = settings.get("config") or []
    arguments = [word for one in ([earlier] if isinstance(earlier, str) else earlier) for word in ("--config", one)]
    arguments += ["--config", str(file)]
    overrides = settings.get("set") or {}
    if not isinstance(overrides, Mapping):
        raise ConfigError("set must be a mapping", fix="set: {trainer.steps: 20}")
    for key, value in overrides.items():
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
        arguments += ["--set", f"{key}={text}"]
    arguments += ["--nproc", str(settings["nproc"])] if "nproc" in settings else []
    return [*arguments, *(f"--{flag.replace('_', '-')}" for flag in FLAGS if settings.get(flag))]


def dry_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return ask_json("train", *train_arguments(settings, Path(folder) / FILE), "--dry-run", "--json")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check names, keys and values, but no file: for a run that needs what is not made yet."""
    run_settings = {key: value for key, value in settings.items() if key not in ("nproc", "strict_plugins")}
    with tempfile.TemporaryDirectory() as folder:
        ask("config", "show", *train_arguments(run_settings, Path(folder) / FILE), "--json")

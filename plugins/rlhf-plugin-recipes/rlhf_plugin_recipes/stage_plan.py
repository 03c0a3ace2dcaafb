"""What a stage would run, checked as far as the outputs of earlier stages are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.cli import open_registry
from rlhf_core.config import ConfigError, Registry, UserError, parse_settings
from rlhf_plugin_recipes import commands, training
from rlhf_plugin_recipes.read import Recipe, Stage, fill, references

UNMADE = "not-made-yet"
"""Stands for an output that an earlier stage has yet to write."""
LOCAL = (".jsonl", ".json", ".parquet", ".yaml", ".gz")


@dataclass(frozen=True)
class Made:
    folder: Path
    digests: Mapping[str, str]
    """Output -> hash of its content."""
    paths: Mapping[str, str]
    """Output -> where it is."""


@dataclass(frozen=True)
class StagePlan:
    """A checked stage."""

    stage: Stage
    settings: Mapping[str, Any]
    """With paths in the place of references; ``${folder}`` is left."""
    waits_for: tuple[str, ...]
    """Stages whose outputs were not there to check it with."""
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of a training run whose inputs are all there: what `rlhf train --dry-run` prints."""


def plan_stage(recipe: Recipe, stage: Stage, made: Mapping[str, Made]) -> StagePlan:
    waits_for = tuple(name for name in stage.needs if name not in made)
    settings = fill(stage.settings, values_for(recipe, stage, made))
    try:
        if stage.kind_name == "train":
            return StagePlan(stage, settings, waits_for, _check_training(recipe, stage, settings, waits_for))
        check_command(stage, settings)
    except UserError as error:
        raise in_stage(error, recipe, stage) from error
    return StagePlan(stage, settings, waits_for)


def values_for(recipe: Recipe, stage: Stage, made: Mapping[str, Made]) -> dict[str, Any]:
    """Reference -> path; of what is not made, the model that it begins with or a word that names nothing."""
    values: dict[str, Any] = {}
    for key, reference in references(stage.settings):
        if not reference.startswith("stages."):
            continue
        _, name, output = reference.split(".")
        if name in made:
            if output not in made[name].paths:
                raise ConfigError(f"stage '{name}' has left no '{output}'", where=f"stage '{stage.name}', {key}")
            values[reference] = made[name].paths[output]
        elif output == "model" and key in ("model", "model.path"):
            values[reference] = _beginning(recipe, name)
        else:
            values[reference] = f"{UNMADE}/{name}/{output}"
    return values


def in_stage(error: UserError, recipe: Recipe, stage: Stage) -> UserError:
    """The same error with the recipe and the stage in front."""
    where = "; ".join(part for part in (str(recipe.file), error.where) if part)
    return type(error)(f"stage '{stage.name}': {error.what}", where=where, why=error.why, fix=error.fix)


def _beginning(recipe: Recipe, name: str) -> str:
    model = recipe.stage(name).settings.get("model", "pocket")
    path = str(model.get("path", "pocket") if isinstance(model, Mapping) else model)
    names = [reference for _, reference in references(path)]
    return _beginning(recipe, names[0].split(".")[1]) if names else path


def _check_training(
    recipe: Recipe, stage: Stage, settings: Mapping[str, Any], waits_for: Sequence[str]
) -> Mapping[str, Any]:
    training.check_keys(settings, f"stage '{stage.name}'")
    if UNMADE in str(settings):
        training.check_settings(settings)
        return {}
    plan = training.dry_run(settings)
    return {} if waits_for else plan


def check_command(stage: Stage, settings: Mapping[str, Any]) -> None:
    """Check a command's options, the components that they name, and files that are to be there."""
    command = commands.find_command(stage.kind.command)
    words = command_words(stage, settings, Path(UNMADE))
    commands.check_arguments(stage.kind.command, command, words)
    registry = open_registry()
    for option, (kind, extra) in stage.kind.components.items():
        for name in names_of(settings.get(option)):
            value = settings.get(extra) if extra else None
            args = commands.arguments(command, {extra: value})[1::2] if value else []
            _check_component(registry, kind, name, args, has_settings=bool(extra))
    params = commands.options_of(command)
    for key in ("input", "data", "dataset", "model", "baseline", "constitution", "config", "reward_model"):
        if key in params:
            for path in names_of(settings.get(key)):
                _check_there(key, path)


def command_words(stage: Stage, settings: Mapping[str, Any], folder: Path) -> list[str]:
    command = commands.find_command(stage.kind.command)
    decided = [key for key in settings if key in stage.kind.folder_options]
    if decided:
        raise ConfigError(f"'{decided[0]}' is decided by the recipe", fix="leave it out; other stages use its output")
    args = commands.arguments(command, fill(settings, {"folder": str(folder)}))
    options = [word for key, name in stage.kind.folder_options.items() for word in (f"--{key}", str(folder / name))]
    json = ["--json"] if commands.has_option(command, "json") else []
    return [*stage.kind.asks, *args, *options, *json]


def names_of(value: Any) -> list[str]:
    rows = value if isinstance(value, list) else [value]
    return [row for row in rows if isinstance(row, str)]


def _check_component(registry: Registry, kind: str, name: str, args: Sequence[str], *, has_settings: bool) -> None:
    bare = name.partition(":")[0]
    if has_settings and args:
        registry.config(kind, bare, parse_settings(args))
    else:
        registry.load(kind, bare)


def _check_there(key: str, path: str) -> None:
    local = Path(path).expanduser()
    is_local = path.startswith(("/", ".", "~")) or path.endswith(LOCAL)
    if is_local and UNMADE not in path and not local.exists():
        raise ConfigError(f"{key} '{path}' does not exist", where=str(local.absolute()), fix="check the path")

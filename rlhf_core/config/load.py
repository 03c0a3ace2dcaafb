"""Merges defaults, YAML files and ``--set`` into one validated :class:`RunConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rlhf_core.config.data import spell_dataset
from rlhf_core.config.errors import explain
from rlhf_core.config.run import RunConfig
from rlhf_core.errors import ConfigError
from rlhf_core.models.config import ModelConfig
from rlhf_core.registry import Registry

SLOTS = ("trainer", "loss", "advantage", "reward", "rollout", "agent", "strategy", "verifier")
BASE_DEFAULTS: Mapping[str, Any] = {"rollout": "native", "agent": "single_turn", "strategy": "auto"}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: missing, not YAML (with line), or not a mapping.
    """
    try:
        data = yaml.safe_load(Path(path).read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"config file '{path}' does not exist", fix="check --config") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config file '{path}' is not valid YAML", why=str(error)) from error
    if not isinstance(data, dict):
        raise ConfigError(f"config file '{path}' must hold a mapping, not {type(data).__name__}")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings deeply; ``over`` wins. A component given another ``name`` replaces the whole mapping."""
    out = dict(base)
    for key, value in over.items():
        old = _as_mapping(key, out.get(key))
        new = _as_mapping(key, value)
        if isinstance(old, dict) and isinstance(new, dict) and _same_component(old, new):
            out[key] = merge(old, new)
        else:
            out[key] = new
    return out


def _as_mapping(key: str, value: Any) -> Any:
    return {"name": value} if isinstance(value, str) and (key in SLOTS or key == "dataset") else value


def _same_component(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "name" not in new or "name" not in old or old["name"] == new["name"]


def parse_sets(settings: Iterable[str]) -> dict[str, Any]:
    """Turn ``["a.b=1", "c=x"]`` into ``{"a": {"b": 1}, "c": "x"}``; values are YAML.

    Raises:
        ConfigError: an item without ``=``.
    """
    out: dict[str, Any] = {}
    for item in settings:
        key, sep, text = item.partition("=")
        if not sep or not key.strip():
            raise ConfigError(f"--set '{item}' is not of the form a.b=value", fix="for example --set trainer.steps=20")
        try:
            value: Any = yaml.safe_load(text) if text else None
        except yaml.YAMLError as error:
            raise ConfigError(f"--set '{item}': the value is not valid YAML", why=str(error)) from error
        if isinstance(value, str) and _is_float(value):
            value = float(value)  # YAML 1.1 reads 1e-5 as text
        first, *rest = key.strip().split(".")
        for part in reversed(rest):
            value = {part: value}
        out = merge(out, {first: value})
    return out


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "e" in text.lower() and text.lower() not in {"inf", "nan"}


def _floats(value: Any) -> Any:
    """Give ``1e-5`` in YAML its number."""
    if isinstance(value, dict):
        return {k: _floats(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_floats(v) for v in value]
    return float(value) if isinstance(value, str) and value[:1].isdigit() and _is_float(value) else value


def resolve(
    registry: Registry,
    *,
    files: Iterable[str | Path] = (),
    settings: Iterable[str] = (),
    sugar: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return the validated configuration.

    Args:
        registry: where component names are looked up.
        files: YAML files, later ones win.
        settings: ``a.b=value`` strings, which win over files.
        sugar: what ``--algo``, ``--reward`` ... stand for; between files and settings.
        base: a run's whole configuration that the rest changes; unused when the rest chooses an algorithm itself.

    Raises:
        ConfigError, PluginError: with the dotted key and the nearest known name.
    """
    data: dict[str, Any] = {}
    for path in files:
        data = merge(data, _floats(read_yaml(path)))
    data = merge(data, sugar or {})
    data = merge(data, parse_sets(settings))
    check_said(data)
    if base is not None and "name" not in (_as_mapping("trainer", data.get("trainer")) or {}):
        data = merge({k: v for k, v in base.items() if k != "dataset" or not _replaces(data.get(k))}, data)
    return validate(registry, data)


def check_said(data: Mapping[str, Any]) -> None:
    """Refuse two settings of which each says the other; a recipe's own gives way instead.

    Raises:
        ConfigError: both are said.
    """
    said = data.get("trainer")
    if not isinstance(said, dict) or said.get("gradient_accumulation_steps") is None:
        return
    ways = [w for w in ("micro_batch_size", "micro_batch_tokens") if said.get(w) is not None]
    if ways:
        both = ("gradient_accumulation_steps", *ways)
        raise ConfigError(
            " and ".join(f"trainer.{way} {said[way]}" for way in both) + " are both given",
            why="each says how an update is cut into micro-batches",
            fix="leave one of them out",
        )


def _replaces(dataset: Any) -> bool:
    """Whether a dataset section names its own sources, rather than changing a setting."""
    return isinstance(dataset, str) or (isinstance(dataset, dict) and bool({"name", "sources"} & set(dataset)))


def validate(registry: Registry, data: Mapping[str, Any]) -> RunConfig:
    """Fill in the loss's recipe, the trainer's vetted companions and its model's recipe, and validate.

    Raises:
        ConfigError: no trainer, or an unusable key or value.
    """
    trainer = _as_mapping("trainer", data.get("trainer"))
    if not isinstance(trainer, dict) or "name" not in trainer:
        known = ", ".join(sorted({e.name for e in registry.entries("trainer")}))
        raise ConfigError("no algorithm chosen", fix=f"--algo NAME, one of: {known}")
    cls = registry.load("trainer", trainer["name"])
    companions = {**BASE_DEFAULTS, **getattr(cls, "companions", {})}
    full = with_companions(with_companions(data, loss_recipe(registry, cls, data, companions)), companions)
    path, recipes = (full.get("model") or {}).get("path", ModelConfig().path), getattr(cls, "recipes", {})
    chosen = full.get("reward")
    reward = chosen.get("name") if isinstance(chosen, Mapping) else None  # what it is otherwise is refused below
    full = with_companions(with_companions(full, recipes.get(f"{path}+{reward}", {})), recipes.get(path, {}))
    try:
        return RunConfig.model_validate(full, context={"registry": registry})
    except ValidationError as error:
        raise explain(error, RunConfig) from error


def loss_recipe(
    registry: Registry, trainer: Any, data: Mapping[str, Any], companions: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What the chosen loss goes with (:attr:`ComponentConfig.recipe`), if the trainer feeds that kind of loss."""
    loss = with_companions(data, {"loss": companions.get("loss")}).get("loss")
    name = (_as_mapping("loss", loss) or {}).get("name") if isinstance(loss, (str, dict)) else None
    chosen = registry.load("loss", str(name)) if name is not None else None
    fits = chosen is not None and chosen.consumes == getattr(trainer, "feeds", None)
    return chosen.recipe if chosen is not None and fits else {}


def with_companions(data: Mapping[str, Any], companions: Mapping[str, Any]) -> dict[str, Any]:
    """Give each slot the user left open, or left without a name, the trainer's default."""
    full = dict(data)
    for slot, default in companions.items():
        mine, base = _as_mapping(slot, full.get(slot)), _as_mapping(slot, default)
        if mine is None:
            full[slot] = base
        elif isinstance(mine, dict) and isinstance(base, dict) and _fits(mine, base) and "sources" not in mine:
            full[slot] = merge(base, mine)
    return full


def _fits(mine: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether defaults for one component may fill another mapping: same component, or one side unnamed."""
    return "name" not in mine or "name" not in base or mine["name"] == base["name"]


def dataset_sugar(name: str) -> dict[str, Any]:
    """What ``--dataset NAME`` stands for."""
    return spell_dataset({"name": name})

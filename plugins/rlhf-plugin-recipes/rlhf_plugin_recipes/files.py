"""YAML files of recipes: shipped ones by name, others by path; a key that stands twice is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, did_you_mean, merge_settings, parse_settings, read_yaml

FLOW = "a value with ${...} inside { } or [ ] needs quotes: {path: '${stages.rm.model}'}"


def shipped() -> dict[str, Path]:
    """Name -> file of the recipes that this package ships."""
    folder = Path(str(files("rlhf_plugin_recipes"))) / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    recipes = shipped()
    if name in recipes:
        return recipes[name]
    if Path(name).expanduser().is_file():
        return Path(name).expanduser()
    raise ConfigError(
        f"there is no recipe '{name}'",
        why="it is neither a file nor one of those that are shipped",
        fix=did_you_mean(name, recipes) or f"one of: {', '.join(recipes)}; or the path of a YAML file",
    )


def read_mapping(file: Path, settings: Iterable[str]) -> dict[str, Any]:
    """The file's mapping with ``a.b=c`` settings over it."""
    try:
        return merge_settings(read_yaml(file), parse_settings(settings))
    except RecursionError as error:
        raise ConfigError(f"'{file}' holds itself", why="an anchor (&) is used inside of what it names") from error
    except ConfigError as error:
        if "not valid YAML" in error.what and "given twice" not in error.why and "${" in file.read_text():
            raise ConfigError(error.what, why=error.why, fix=FLOW) from error
        raise


def refuse_unknown(where: str, keys: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for key in keys:
        if key not in names:
            fix = did_you_mean(str(key), names) or f"one of: {', '.join(names)}"
            raise ConfigError(f"unknown key '{key}'", where=where, fix=fix)


def flat(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        rows = (flat(one, f"{key}.{name}" if key else str(name)) for name, one in value.items())
        return {name: one for row in rows for name, one in row.items()}
    return {key: value}

"""YAML files of recipes and sweeps: shipped ones by name, others by path; a key that stands twice is refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config import ConfigError, merge_settings, parse_settings

FLOW = "a value with ${...} inside { } or [ ] needs quotes: {path: '${stages.rm.model}'}"


def shipped(folder: str) -> dict[str, Path]:
    """Name -> file of what this package ships in ``recipes`` or ``sweeps``."""
    place = Path(str(files("rlhf_plugin_recipes"))) / folder
    return {file.stem: file for file in sorted(place.glob("*.yaml"))}


def find_file(name: str, folder: str) -> Path:
    """The file of that path, or the shipped one of that name."""
    known = shipped(folder)
    if name in known:
        return known[name]
    if Path(name).expanduser().is_file():
        return Path(name).expanduser()
    kind = folder.removesuffix("s")
    raise ConfigError(
        f"there is no {kind} '{name}'",
        why="it is neither a file nor one of those that are shipped",
        fix=near(name, known) or f"one of: {', '.join(known)}; or the path of a YAML file",
    )


def read_mapping(file: Path, settings: Iterable[str]) -> dict[str, Any]:
    """The file's mapping with ``a.b=c`` settings over it."""
    text = ""
    try:
        text = file.read_text(encoding="utf-8")
        twice = _twice(yaml.compose(text, Loader=yaml.SafeLoader))
        data = yaml.safe_load(text)
    except RecursionError as error:
        raise ConfigError(f"'{file}' holds itself", why="an anchor (&) is used inside of what it names") from error
    except yaml.YAMLError as error:
        flow = FLOW if "${" in text else ""
        raise ConfigError(f"'{file}' is not valid YAML", why=str(error), fix=flow) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}") from error
    if twice:
        raise ConfigError(f"'{twice}' is given twice", where=str(file), fix="rename one of them")
    if not isinstance(data, dict):
        raise ConfigError(f"'{file}' must hold a mapping, not {type(data).__name__}")
    return merge_settings(numbers(data), parse_settings(settings))


def numbers(value: Any) -> Any:
    """Give ``1e-5`` its number, which YAML 1.1 reads as text."""
    if isinstance(value, dict):
        return {key: numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [numbers(one) for one in value]
    if isinstance(value, str) and value[:1].isdigit() and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def refuse_unknown(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keys that nobody reads."""
    names = list(known)
    for key in given:
        if key not in names:
            fix = near(str(key), names) or f"one of: {', '.join(names)}"
            raise ConfigError(f"unknown key '{key}'", where=where, fix=fix)


def near(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``, or nothing."""
    names = difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(repr(one) for one in names)}?" if names else ""


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Dotted key -> value of nested mappings; lists stay whole."""
    if isinstance(value, Mapping) and value:
        rows = (flat(one, f"{key}.{name}" if key else str(name)) for name, one in value.items())
        return {name: one for row in rows for name, one in row.items()}
    return {key: value}


def _twice(node: Any, path: str = "") -> str:
    """Dotted key that stands twice in one mapping; "" if none does."""
    if isinstance(node, yaml.MappingNode):
        keys = [str(key.value) for key, _ in node.value]
        for key, (_, value) in zip(keys, node.value):
            name = f"{path}.{key}".removeprefix(".")
            if keys.count(key) > 1:
                return name
            if inner := _twice(value, name):
                return inner
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            if inner := _twice(one, path):
                return inner
    return ""

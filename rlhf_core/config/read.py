"""Configuration as text: YAML files and ``--set a.b=c``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config.layers import merge_settings
from rlhf_core.types.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; YAML's own loaders silently take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: missing, not YAML (with line), a key that stands twice, or not a mapping.
    """
    try:
        data = yaml.load(Path(path).read_text(), Loader=_Loader)
    except FileNotFoundError as error:
        raise ConfigError(f"config file '{path}' does not exist", fix="check --config") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config file '{path}' is not valid YAML", why=str(error)) from error
    if not isinstance(data, dict):
        raise ConfigError(f"config file '{path}' must hold a mapping, not {type(data).__name__}")
    return data


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
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
        out = merge_settings(out, {first: value})
    return out


def numbers(value: Any) -> Any:
    """Give ``1e-5`` in YAML its number."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [numbers(v) for v in value]
    return float(value) if isinstance(value, str) and value[:1].isdigit() and _is_float(value) else value


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "e" in text.lower() and text.lower() not in {"inf", "nan"}

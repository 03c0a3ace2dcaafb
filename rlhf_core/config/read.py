"""Configuration as text: YAML files and ``--set a.b=c``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config.layers import merge_settings
from rlhf_core.errors import ConfigError


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

"""The few figures by which a stage's result is judged, for the summary."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_plugin_recipes.files import flat
from rlhf_plugin_recipes.kinds import RESULT

MOST = 3
PREFERRED: Sequence[str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["preferred"]
"""Shown where a stage does not say what to show, as far as there are; ends of dotted keys."""


def figures_of(folder: Path, show: Sequence[str]) -> dict[str, Any]:
    values = {k: v for k, v in _result(folder).items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if show:
        return {key: _chosen(key, values) for key in show}
    usual = [key for end in PREFERRED for key in values if key == end or key.endswith(f".{end}")]
    chosen = list(dict.fromkeys(usual))[:MOST] or list(values)[:MOST]
    return {key.removeprefix("evaluation_after."): values[key] for key in chosen}


def _chosen(key: str, values: Mapping[str, Any]) -> Any:
    """The figure of that key, or the only one whose key ends so; otherwise why there is none."""
    if key in values:
        return values[key]
    ends = [one for one in values if one.endswith(f".{key}")]
    if len(ends) > 1:
        return f"{len(ends)} figures end so, as {ends[0]} and {ends[1]}"
    return values[ends[0]] if ends else "not there"


def _result(folder: Path) -> dict[str, Any]:
    for name in ("summary.json", RESULT):
        if (folder / name).is_file():
            try:
                data = json.loads((folder / name).read_text(encoding="utf-8"))
            except ValueError:
                continue
            return flat(_indexed(data))
    return {}


def _indexed(value: Any) -> Any:
    """Lists of mappings as mappings, by their ``name`` or number."""
    if isinstance(value, Mapping):
        return {str(key): _indexed(one) for key, one in value.items()}
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        return {str(one.get("name", n)): _indexed(one) for n, one in enumerate(value)}
    return value

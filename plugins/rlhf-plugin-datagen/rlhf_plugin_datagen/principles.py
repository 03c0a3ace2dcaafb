"""Constitutions: the principles that a judge is given, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config import ConfigError, load_yaml

SEVEN: tuple[str, ...] = tuple(load_yaml(Path(__file__).with_name("constitution.yaml").read_text()))
"""The constitution where none is given."""


def read_constitution(path: str | None) -> tuple[str, ...]:
    if path is None:
        return SEVEN
    try:
        data: Any = load_yaml(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"constitution '{path}' cannot be read", why=" ".join(str(error).split())[:200], fix="check --constitution"
        ) from error
    rows = data.get("principles") if isinstance(data, Mapping) else data
    if not isinstance(rows, list) or not rows:
        raise ConfigError(
            f"constitution '{path}' holds no principles", fix="a YAML list of texts, or principles: followed by one"
        )
    if bad := [r for r in rows if not isinstance(r, str) or not r.strip()]:
        raise ConfigError(
            f"constitution '{path}' has a principle that is not text",
            why=f"got {bad[0]!r}",
            fix="one line of text each",
        )
    twice = [t for t, n in Counter(" ".join(r.lower().split()) for r in rows).items() if n > 1]
    if twice:
        raise ConfigError(
            f"constitution '{path}' has the principle '{twice[0]}' twice", why="it would count double", fix="remove one"
        )
    return tuple(r.strip() for r in rows)


def numbered(principles: Sequence[str]) -> str:
    return "\n".join(f"{i}. {p}" for i, p in enumerate(principles, 1))

"""Turns a pydantic ValidationError into one clear message with the nearest key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from rlhf_core.errors import ConfigError, RlhfError, did_you_mean


def explain_invalid(
    error: ValidationError,
    model: type[BaseModel],
    where: str = "",
    also: Iterable[str] = (),
    hints: Callable[[Sequence[str], Any], str] | None = None,
) -> RlhfError:
    """Return the error to raise: the toolkit's own if one was raised inside, else a ConfigError.

    All problems are listed, each with its dotted key; an unknown key names its nearest neighbour.

    Args:
        error: what pydantic found.
        model: what was validated.
        where: which component it is.
        also: further keys that may be written in the same place.
        hints: what an unknown key, given by its path and value, may stand for; before the nearest neighbour.
    """
    rows: list[str] = []
    fixes: list[str] = []
    for problem in error.errors():
        inner = problem.get("ctx", {}).get("error")
        if isinstance(inner, RlhfError):
            if not isinstance(inner, ConfigError):
                return inner
            rows.append(str(inner))
            continue
        if problem["type"] == "too_short" and rows:
            continue  # the list is short because its items, reported above, were refused
        text, fix = _row(problem, model, also, hints)
        rows.append(text)
        if fix:
            fixes.append(fix)
    what = rows[0] if len(rows) == 1 else "the configuration has several problems:\n  - " + "\n  - ".join(rows)
    return ConfigError(what, where=where, fix="; ".join(dict.fromkeys(fixes)))


def _row(
    problem: Any,
    model: type[BaseModel],
    also: Iterable[str],
    hints: Callable[[Sequence[str], Any], str] | None,
) -> tuple[str, str]:
    path = [str(p) for p in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        known = [*known_keys(model, path[:-1]), *(also if len(path) == 1 else ())]
        hint = (hints(path, problem.get("input")) if hints else "") or did_you_mean(path[-1], known)
        return f"unknown key '{key}'", hint or f"keys here: {', '.join(sorted(known))}"
    if problem["type"] == "missing":
        return f"missing key '{key}'", f"set it, for example --set {key}=..."
    shown = repr(problem.get("input"))
    return f"'{key}': {problem['msg']}, got {shown[:80]}", ""


def known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names at ``path`` inside ``model``; empty if the path leaves the model."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue
        candidates = [
            a
            for a in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(a, type) and issubclass(a, BaseModel)
        ]
        if not candidates:
            return []
        model = candidates[0]
    return list(model.model_fields)

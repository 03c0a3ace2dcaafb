"""Turns a pydantic ValidationError into one clear message with the nearest key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from rlhf_core.types.errors import ConfigError, RlhfError, did_you_mean

FEW_KEYS = 12
"""A section of at most so many keys is listed whole."""
Hints = Callable[[Sequence[str], Any], str]
"""Path and value of an unknown key -> what it may stand for, or ""."""


class InvalidComponent(ConfigError):
    """A component's section that does not validate; whoever knows where it stands says it by full keys."""

    def __init__(
        self, error: ValidationError, model: type[BaseModel], where: str, also: Sequence[str], prefix: str = ""
    ) -> None:
        self.error, self.model, self.also = error, model, also
        what, fix = _explained(error, model, also, None, prefix)
        super().__init__(what, where=where, fix=fix)

    def under(self, prefix: str, hints: Hints | None) -> ConfigError:
        """The same with full keys, and with hints at keys of other places."""
        what, fix = _explained(self.error, self.model, self.also, hints, prefix)
        return ConfigError(what, where=self.where, fix=fix)


def explain_invalid(
    error: ValidationError,
    model: type[BaseModel],
    where: str = "",
    also: Iterable[str] = (),
    hints: Hints | None = None,
) -> RlhfError:
    """The error to raise: the toolkit's own if one was raised inside, else a ConfigError with all problems by key."""
    for problem in error.errors():
        inner = problem.get("ctx", {}).get("error")
        if isinstance(inner, RlhfError) and not isinstance(inner, ConfigError):
            return inner
        if isinstance(inner, InvalidComponent) and not where and len(error.errors()) == 1:
            return inner.under(dotted([str(part) for part in problem["loc"]]), hints)
    what, fix = _explained(error, model, also, hints, "")
    return ConfigError(what, where=where, fix=fix)


def _explained(
    error: ValidationError, model: type[BaseModel], also: Iterable[str], hints: Hints | None, prefix: str
) -> tuple[str, str]:
    """What is wrong, and how to correct it."""
    rows: list[str] = []
    fixes: list[str] = []
    for problem in error.errors():
        inner = problem.get("ctx", {}).get("error")
        if isinstance(inner, RlhfError):
            full = dotted([str(part) for part in problem["loc"]])
            rows.append(str(inner.under(full, hints) if isinstance(inner, InvalidComponent) and not prefix else inner))
            continue
        if problem["type"] == "too_short" and rows:
            continue  # the list is short because its items, reported above, were refused
        text, fix = _row(problem, model, also, hints, prefix)
        rows.append(text)
        if fix:
            fixes.append(fix)
    what = rows[0] if len(rows) == 1 else "the configuration has several problems:\n  - " + "\n  - ".join(rows)
    return what, "; ".join(dict.fromkeys(fixes))


def _row(
    problem: Any, model: type[BaseModel], also: Iterable[str], hints: Hints | None, prefix: str
) -> tuple[str, str]:
    path = [str(p) for p in problem["loc"]]
    section = dotted([*prefix.split("."), *path[:-1]] if prefix else path[:-1])
    key = f"{section}.{path[-1]}" if section else path[-1]
    if problem["type"] == "extra_forbidden":
        known = [*known_keys(model, path[:-1]), *(also if len(path) == 1 else ())]
        hint = hints([*prefix.split("."), *path] if prefix else path, problem.get("input")) if hints else ""
        hint = hint or did_you_mean(path[-1], known, prefix=f"{section}." if section else "")
        lists = not hint or (bool(section) and len(known) <= FEW_KEYS)
        keys = f"keys here: {', '.join(sorted(known))}" if lists else ""
        return f"unknown key '{key}'", f"{hint} {keys}".strip()
    if problem["type"] == "missing":
        return f"missing key '{key}'", f"set it, for example --set {key}=..."
    shown = repr(problem.get("input"))
    return f"'{key}': {problem['msg']}, got {shown[:80]}", ""


def dotted(path: Sequence[str]) -> str:
    """A place as a user writes it: ``dataset.path`` for ``dataset.sources.0.source.path``."""
    words = list(path)
    if words[:3] == ["dataset", "sources", "0"]:
        words = ["dataset", *words[3:]]
    if words[:1] == ["dataset"] and "source" in words:
        words.remove("source")
    return ".".join(words)


def known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names at ``path`` inside ``model``; empty if the path leaves the model."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue
        sections = sections_of(field.annotation)
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """Models among the types of a field."""
    types = (annotation, *getattr(annotation, "__args__", ()))
    return [a for a in types if isinstance(a, type) and issubclass(a, BaseModel)]

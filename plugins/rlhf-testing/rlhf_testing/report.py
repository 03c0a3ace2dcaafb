"""How the kit reports a property that does not hold, and sees that components leave what they are given alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.types.frozen import frozen


def require(holds: bool, config: ComponentConfig, rule: str, seen: str, fix: str = "") -> None:
    """Raise ``AssertionError`` unless ``holds``, naming the component, the ``rule`` (a sentence), what was ``seen``
    instead and the ``fix``."""
    require_of(holds, f"{type(config).__name__} ('{config.name}')", rule, seen, fix)


def require_of(holds: bool, who: str, rule: str, seen: str, fix: str = "") -> None:
    """:func:`require` for what has no configuration; ``who`` names it."""
    if not holds:
        raise AssertionError("\n".join([f"{who}: {rule}", f"  seen: {seen}", *([f"  fix: {fix}"] if fix else [])]))


F = TypeVar("F", bound=Callable[..., Any])


def left_alone(config: ComponentConfig, method: F, name: str, *given: str) -> F:
    """The method, called ``name`` in messages; no call may change its arguments, named by ``given``."""

    def watched(*arguments: Any, **options: Any) -> Any:
        before = frozen(list(arguments))
        try:
            answer = method(*arguments, **options)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            if not any(words in str(error) for words in ("read-only", "in-place operation", "cannot assign to field")):
                raise
            _refuse(config, name, f"{type(error).__name__}: {error}")
        for label, old, new in zip(given, before, arguments):
            path = difference(old, new)
            if path is not None:
                _refuse(config, name, f"{label}{path} changed")
        return answer

    return cast("F", watched)


def _refuse(config: ComponentConfig, name: str, seen: str) -> NoReturn:
    require(False, config, f"{name} leaves what it is given alone", seen, "work on a copy; no in-place operations")
    raise AssertionError


def difference(old: Any, new: Any) -> str | None:
    """Where two values differ (``['a'][1]``); None if they are equal, "" if all of it differs."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        same = old.shape == new.shape and old.dtype == new.dtype
        return None if same and torch.equal(old.nan_to_num(), new.detach().nan_to_num()) else ""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        numeric = old.dtype.kind in "fc" and new.dtype.kind in "fc"
        return None if np.array_equal(old, new, equal_nan=numeric) else ""
    if dataclasses.is_dataclass(old) and type(old) is type(new):
        return _first((f".{f.name}", getattr(old, f.name), getattr(new, f.name)) for f in dataclasses.fields(old))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return "" if old.keys() != new.keys() else _first((f"[{k!r}]", old[k], new[k]) for k in old)
    if isinstance(old, Sequence) and isinstance(new, Sequence) and not isinstance(old, (str, bytes)):
        return "" if len(old) != len(new) else _first((f"[{n}]", a, b) for n, (a, b) in enumerate(zip(old, new)))
    if isinstance(old, (str, bytes, int, float, Set, type(None))):
        return None if old == new or (old != old and new != new) else ""
    return None  # not of a kind that can be compared


def _first(parts: Any) -> str | None:
    for path, old, new in parts:
        deeper = difference(old, new)
        if deeper is not None:
            return path + deeper
    return None

"""Values that cannot be changed: what hooks see, and what prompts, rollouts and scores hold."""

from __future__ import annotations

import copy
import dataclasses
import enum
import sys
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np

V = TypeVar("V")
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, range})
"""Types whose values cannot change."""


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise TypeError(f"this {kind} is read-only, since others see it too; change a copy: {kind}(...)")


class _Frozen:
    """Refuses changes. Equal to a plain value, written as JSON like one, and plain again once copied."""

    plain: type[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plain(self),)

    def __copy__(self) -> Any:
        return self.plain(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.plain(self), memo)


class FrozenDict(_Frozen, dict[Any, Any]):
    """A dict that refuses changes."""

    plain = dict
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


class FrozenList(_Frozen, list[Any]):
    """A list that refuses changes."""

    plain = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse


def frozen(value: V) -> V:
    """A deep copy that refuses changes: dicts and lists become :class:`FrozenDict` and :class:`FrozenList`, arrays
    read-only for good; the types stay, but for sets.
    """
    return cast("V", _frozen(value))


def _frozen(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS or isinstance(value, (enum.Enum, PurePath)):
        return value
    numpy = sys.modules.get("numpy")  # where nobody has imported it, as in a verifier's worker, nothing is an array
    if numpy is not None and isinstance(value, numpy.generic):
        return value
    if numpy is not None and isinstance(value, numpy.ndarray):
        return frozen_array(value)
    if isinstance(value, tuple):
        if ATOMS.issuperset(map(type, value)):
            return value
        items = map(_frozen, value)
        return kind(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, Mapping):
        return FrozenDict({k: _frozen(v) for k, v in value.items()})
    if isinstance(value, list):
        return FrozenList(map(_frozen, value))
    if isinstance(value, Set):
        return frozenset(map(_frozen, value))
    if dataclasses.is_dataclass(value):
        new = object.__new__(kind)  # what its __post_init__ checks has been checked
        for field in dataclasses.fields(value):
            object.__setattr__(new, field.name, _frozen(getattr(value, field.name)))
        return new
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().clone()
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied is described, rather than shared
        return repr(value)


def frozen_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy over immutable bytes; the array itself if it is one already."""
    import numpy as np

    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, bytes):
        return array
    if array.dtype.hasobject or not array.size:
        copied = array.copy()
        copied.flags.writeable = False
        return copied
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)

"""Values that cannot be changed: what hooks see, and what prompts, rollouts and scores hold. Sequences of many of them
that take little memory.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
import sys
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import compress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
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
    if kind is dict or isinstance(value, Mapping):
        return FrozenDict({k: v if type(v) in ATOMS else _frozen(v) for k, v in value.items()})
    if kind in ATOMS or isinstance(value, (enum.Enum, PurePath)):
        return value
    if isinstance(value, tuple):
        if ATOMS.issuperset(map(type, value)):
            return value
        items = map(_frozen, value)
        return kind(*items) if hasattr(value, "_fields") else tuple(items)
    numpy = sys.modules.get("numpy")  # where nobody has imported it, as in a verifier's worker, nothing is an array
    if numpy is not None and isinstance(value, numpy.generic):
        return value
    if numpy is not None and isinstance(value, numpy.ndarray):
        return frozen_array(value)
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


def frozen_array(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy over immutable bytes; the array itself if it is one already."""
    import numpy as np

    base: Any = values
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, bytes):
        return values
    if values.dtype.hasobject or not values.size:
        copied = values.copy()
        copied.flags.writeable = False
        return copied
    return np.frombuffer(values.tobytes(), values.dtype).reshape(values.shape)


TOGETHER = 64
"""Rows that are compressed at once."""
KEPT = 8
"""Blocks that stay unpacked: of as many sources, whose rows take turns."""


class Lazy(Sequence[T]):
    """``make(number)`` of each number, made whenever asked for; a slice is a list. Equal to a list of the same."""

    def __init__(self, make: Callable[[int], T], numbers: Iterable[int]) -> None:
        self.make, self.numbers = make, numbers if isinstance(numbers, range) else array("q", numbers)

    def only(self, wanted: Iterable[object]) -> Lazy[T]:
        """Those for which ``wanted`` has something true."""
        return Lazy(self.make, compress(self.numbers, wanted))

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[T]:
        return map(self.make, self.numbers)

    def __getitem__(self, index: Any) -> Any:
        chosen = self.numbers[index]
        return list(map(self.make, chosen)) if isinstance(index, slice) else self.make(chosen)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


class Packed(Lazy[T]):
    """Values that do not change, as compressed pickles; a prompt of 75 characters takes about 27 bytes."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._blocks, self._last, self.numbers = list[bytes | list[T]](), list[T](), range(0)
        self._kept = OrderedDict[int, list[T]]()
        for value in values:
            self.append(value)

    def append(self, value: T) -> None:
        """Add a value at the end."""
        self._last.append(value)
        self.numbers = range(len(self.numbers) + 1)
        if len(self._last) == TOGETHER:
            self._blocks.append(_compressed(self._last))
            self._last = []

    def make(self, number: int) -> T:
        """The value of a number; the last few blocks that were asked for stay unpacked."""
        block, place = divmod(number, TOGETHER)
        if block == len(self._blocks):
            return self._last[place]
        if (unpacked := self._kept.get(block)) is None:
            packed = self._blocks[block]
            unpacked = pickle.loads(zlib.decompress(packed)) if isinstance(packed, bytes) else packed
            self._kept[block] = unpacked
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return unpacked[place]


def _compressed(values: list[T]) -> bytes | list[T]:
    """The values themselves where they cannot be pickled: nested too deeply, or of a class inside a function."""
    try:
        return zlib.compress(pickle.dumps(values), 1)
    except Exception:  # of whatever the values' classes raise
        return values

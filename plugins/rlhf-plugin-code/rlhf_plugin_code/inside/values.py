"""Plain data as JSON with tags, never unpickled: a value is described by what it *is* (``int.__index__``), never by
methods that a subclass may have overridden, and rebuilt from exact built-in types."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 200
MAX_BYTES = 8 << 20
SMALL = 1 << 63

Opaque = Callable[[Any], Any]
"""Describes, or finds again, what is not plain data."""


class TooDeep(ValueError):
    """Nested beyond :data:`MAX_DEPTH`, or a container that holds itself."""


def describe(value: Any, opaque: Opaque, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise TooDeep(f"nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    for base, tell in _SCALARS:
        if issubclass(kind, base):
            return tell(value)
    for base, tag in _CONTAINERS:
        if issubclass(kind, base):
            items = [describe(item, opaque, depth + 1) for item in base.__iter__(value)]
            return items if tag == "l" else {tag: items}
    if issubclass(kind, dict):
        return {"d": [[describe(k, opaque, depth + 1), describe(v, opaque, depth + 1)] for k, v in dict.items(value)]}
    return opaque(value)


def rebuild(data: Any, opaque: Opaque) -> Any:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list):
        return [rebuild(item, opaque) for item in data]
    ((tag, body),) = data.items()
    return _BUILD[tag](body, opaque) if tag in _BUILD else opaque(data)


def _number(value: int) -> Any:
    number = int.__index__(value)
    return number if -SMALL < number < SMALL else {"i": hex(number)}  # decimal digits take quadratic time


_SCALARS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, _number),
    (float, lambda v: float.__add__(v, 0.0) if v == v else float("nan")),
    (str, lambda v: str.__str__(v)[:]),
    (bytes, lambda v: {"b": bytes.hex(v)}),
    (bytearray, lambda v: {"y": bytearray.hex(v)}),
    (complex, lambda v: {"c": [complex.__add__(v, 0).real, complex.__add__(v, 0).imag]}),
    (range, lambda v: {"r": [_number(v.start), _number(v.stop), _number(v.step)]}),
    (Fraction, lambda v: {"f": [_number(v.numerator), _number(v.denominator)]}),
    (Decimal, lambda v: {"D": Decimal.__str__(v)}),
)
_CONTAINERS: tuple[tuple[type, str], ...] = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z"), (deque, "q"))


def _items(body: Any, opaque: Opaque) -> list[Any]:
    return [rebuild(item, opaque) for item in body]


def _integer(body: Any, opaque: Opaque) -> int:
    if isinstance(body, str):
        return int(body, 16)
    raise TypeError(f"no integer: {type(body).__name__}")


_BUILD: dict[str, Callable[[Any, Opaque], Any]] = {
    "i": _integer,
    "b": lambda body, _: bytes.fromhex(body),
    "y": lambda body, _: bytearray.fromhex(body),
    "c": lambda body, _: complex(*body),
    "r": lambda body, opaque: range(*_items(body, opaque)),
    "f": lambda body, opaque: Fraction(*_items(body, opaque)),
    "D": lambda body, _: Decimal(body),
    "t": lambda body, opaque: tuple(_items(body, opaque)),
    "s": lambda body, opaque: set(_items(body, opaque)),
    "z": lambda body, opaque: frozenset(_items(body, opaque)),
    "q": lambda body, opaque: deque(_items(body, opaque)),
    "d": lambda body, opaque: {rebuild(k, opaque): rebuild(v, opaque) for k, v in body},
}


def pack(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"

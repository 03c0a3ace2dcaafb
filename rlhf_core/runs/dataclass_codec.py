"""Frozen dataclasses as trees that :mod:`rlhf_core.types.tree` can save, and back.

Every instance is written once, in the table of its class; what holds it twice refers to its row. Fields that a later
version adds are read with their defaults.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

Leaf = Callable[[Any], Any]


class Encoder:
    """Collects the tables of one tree.

    Args:
        leaves: class -> function that names an instance instead of writing its fields (a prompt by source and id).
        classes: an instance of a subclass of one of these is written as one of these.
    """

    def __init__(self, leaves: Mapping[type, Leaf], classes: Sequence[type] = ()) -> None:
        self.leaves, self.classes = leaves, classes
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self._rows: dict[int, int] = {}
        self._alive: list[Any] = []
        """Keeps what ``_rows`` knows by address from being freed."""

    def encode(self, value: Any) -> Any:
        """The value as a tree of plain values, arrays and references."""
        leaf = next((cls for cls in self.leaves if isinstance(value, cls)), None)
        if leaf is not None:
            return {"leaf": [leaf.__name__, self.leaves[leaf](value)]}
        if is_dataclass(value) and not isinstance(value, type):
            return self._reference(value)
        if isinstance(value, enum.Enum):
            return {"enum": [type(value).__name__, value.value]}
        if isinstance(value, Mapping):
            return {"map": {key: self.encode(item) for key, item in value.items()}}
        if isinstance(value, tuple) and value and all(type(item) is int for item in value):
            return {"ids": np.asarray(value, np.int64)}
        if isinstance(value, (list, tuple)):
            return type(value)(self.encode(item) for item in value)
        return value

    def _reference(self, instance: Any) -> dict[str, Any]:
        cls = next((cls for cls in type(instance).__mro__ if cls in self.classes), type(instance))
        kind = cls.__name__
        if id(instance) not in self._rows:
            row = {field.name: self.encode(getattr(instance, field.name)) for field in fields(cls)}
            table = self.tables.setdefault(kind, [])
            self._rows[id(instance)] = len(table)
            table.append(row)
            self._alive.append(instance)
        return {"ref": [kind, self._rows[id(instance)]]}


def encode(value: Any, leaves: Mapping[type, Leaf], classes: Sequence[type] = ()) -> dict[str, Any]:
    """``{"tables": ..., "value": ...}`` of a value; see :class:`Encoder`."""
    encoder = Encoder(leaves, classes)
    encoded = encoder.encode(value)
    return {"tables": encoder.tables, "value": encoded}


class Decoder:
    """Reads what :func:`encode` wrote.

    Args:
        tables: class name -> rows.
        classes: that may occur, enums included.
        leaves: class name -> function that finds an instance by what names it.
    """

    def __init__(
        self, tables: Mapping[str, Sequence[Mapping[str, Any]]], classes: Sequence[type], leaves: Mapping[str, Leaf]
    ) -> None:
        self.tables, self.leaves = tables, leaves
        self.classes = {cls.__name__: cls for cls in classes}
        self._instances: dict[tuple[str, int], Any] = {}

    def decode(self, value: Any) -> Any:
        """The value of a tree."""
        if isinstance(value, Mapping):
            ((tag, body),) = value.items()
            return getattr(self, f"_{tag}")(body)
        if isinstance(value, (list, tuple)):
            return type(value)(self.decode(item) for item in value)
        return value

    def _ref(self, body: Sequence[Any]) -> Any:
        kind, number = body
        key = (str(kind), int(number))
        if key not in self._instances:
            row = self.tables[key[0]][key[1]]
            self._instances[key] = self.classes[key[0]](**{name: self.decode(item) for name, item in row.items()})
        return self._instances[key]

    def _leaf(self, body: Sequence[Any]) -> Any:
        return self.leaves[body[0]](body[1])

    def _enum(self, body: Sequence[Any]) -> Any:
        return self.classes[body[0]](body[1])

    def _map(self, body: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key: self.decode(item) for key, item in body.items()}

    def _ids(self, body: Any) -> tuple[int, ...]:
        return tuple(body.tolist())


def decode(tree: Mapping[str, Any], classes: Sequence[type], leaves: Mapping[str, Leaf]) -> Any:
    """Undo :func:`encode`."""
    return Decoder(tree["tables"], classes, leaves).decode(tree["value"])

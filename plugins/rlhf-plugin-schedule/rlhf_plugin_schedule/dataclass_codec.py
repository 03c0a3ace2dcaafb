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


def encode(value: Any, leaves: Mapping[type, Leaf], classes: Sequence[type] = ()) -> dict[str, Any]:
    """``{"tables": ..., "value": ...}``: a tree of plain values, arrays and references to rows of the tables.

    Args:
        leaves: class -> function that names an instance instead of writing its fields (a prompt by source and id).
        classes: an instance of a subclass of one of these is written as one of these.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    rows: dict[int, tuple[int, Any]] = {}  # by address, with the instance, which is so kept from being freed

    def tree(value: Any) -> Any:
        leaf = next((cls for cls in leaves if isinstance(value, cls)), None)
        if leaf is not None:
            return {"leaf": [leaf.__name__, leaves[leaf](value)]}
        if is_dataclass(value) and not isinstance(value, type):
            return reference(value)
        if isinstance(value, enum.Enum):
            return {"enum": [type(value).__name__, value.value]}
        if isinstance(value, Mapping):
            return {"map": {key: tree(item) for key, item in value.items()}}
        if isinstance(value, tuple) and value and all(type(item) is int for item in value):
            return {"ids": np.asarray(value, np.int64)}
        return type(value)(map(tree, value)) if isinstance(value, (list, tuple)) else value

    def reference(instance: Any) -> dict[str, Any]:
        cls = next((cls for cls in type(instance).__mro__ if cls in classes), type(instance))
        if id(instance) not in rows:
            row = {field.name: tree(getattr(instance, field.name)) for field in fields(cls)}
            table = tables.setdefault(cls.__name__, [])
            rows[id(instance)] = len(table), instance
            table.append(row)
        return {"ref": [cls.__name__, rows[id(instance)][0]]}

    return {"tables": tables, "value": tree(value)}


def decode(encoded: Mapping[str, Any], classes: Sequence[type], leaves: Mapping[str, Leaf]) -> Any:
    """Undo :func:`encode`.

    Args:
        classes: that may occur, enums included.
        leaves: class name -> function that finds an instance by what names it.
    """
    by_name = {cls.__name__: cls for cls in classes}
    instances: dict[tuple[str, int], Any] = {}

    def value_of(node: Any) -> Any:
        if isinstance(node, (list, tuple)):
            return type(node)(map(value_of, node))
        if not isinstance(node, Mapping):
            return node
        ((tag, body),) = node.items()
        if tag == "ref":
            return instance(str(body[0]), int(body[1]))
        if tag == "leaf":
            return leaves[body[0]](body[1])
        if tag == "enum":
            return by_name[body[0]](body[1])
        return {key: value_of(item) for key, item in body.items()} if tag == "map" else tuple(body.tolist())

    def instance(name: str, number: int) -> Any:
        if (name, number) not in instances:
            row = encoded["tables"][name][number]
            instances[name, number] = by_name[name](**{field: value_of(item) for field, item in row.items()})
        return instances[name, number]

    return value_of(encoded["value"])

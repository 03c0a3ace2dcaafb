"""Python objects of the run that is under way in this process, and how they are recognised."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Generator, Mapping
from typing import Any, cast

from rlhf_core.types.errors import ConfigError, DatasetError, RlhfError

Row = Mapping[str, Any]
HELDOUT_NAMES = ("heldout", "test", "validation", "eval")
"""Splits of a mapping that are taken for the held-out rows, the first that is there."""


def read_once(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The same objects, with rows that can be read again and again in the place of an iterator."""
    return {slot: splits_of(value) if slot == "dataset" else value for slot, value in objects.items()}


def splits_of(value: Any) -> dict[str, list[Row]]:
    """``train`` and ``heldout`` rows of a list of rows, a ``datasets.Dataset``, a DataFrame, or a mapping of such."""
    if not isinstance(value, Mapping):
        return {"train": rows_of(value, "train"), "heldout": []}
    splits = cast("Mapping[str, Any]", value)
    if "train" not in splits:
        raise DatasetError(
            "the dataset has no split 'train'", why=f"it has {', '.join(map(str, splits))}", fix='{"train": [...]}'
        )
    name = next((n for n in HELDOUT_NAMES if n in splits), None)
    return {"train": rows_of(splits["train"], "train"), "heldout": rows_of(splits[name], name) if name else []}


def rows_of(value: Any, split: str) -> list[Row]:
    """Rows of a list, a ``datasets.Dataset`` or a DataFrame; ``split`` names them in errors."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a DataFrame
        value = value.astype(object).where(value.notna(), None).to_dict(orient="records")  # its NaN is a missing value
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise DatasetError(f"the dataset is a {type(value).__name__}", fix="pass rows, a datasets.Dataset or a name")
    rows = list(value)
    bad = next((n for n, row in enumerate(rows) if not isinstance(row, Mapping)), None)
    if bad is not None:
        raise DatasetError(
            f"row {bad + 1} of '{split}' is a {type(rows[bad]).__name__}", fix='a row is a mapping: {"prompt": "..."}'
        )
    if not rows and split == "train":
        raise DatasetError("the dataset passed in has no rows", fix="give at least one")
    return [dict(row) for row in rows]


_objects: dict[str, Any] = {}


@contextlib.contextmanager
def registered(objects: Mapping[str, Any]) -> Generator[None, None, None]:
    """Let configurations of this process find these objects, by slot."""
    if _objects.get("busy"):
        raise RlhfError(
            "another run of this process has not ended",
            why="runs share torch's settings",
            fix="wait until it has ended, or start the second run in another process",
        )
    _objects.update(objects, busy=True)
    try:
        yield
    finally:
        _objects.clear()


def find_object(slot: str, description: str, digest: str) -> Any:
    """The object that a plan's entry stands for."""
    if slot not in _objects:
        raise ConfigError(
            f"the run's {slot} is a Python object: {description}",
            why="a plan holds its description, not the object itself",
            fix=f"in Python: rlhf_core.load_run(RUN).resume({slot}=...), with the same object",
        )
    current = digest_of(slot, _objects[slot])
    if digest and current != digest:
        raise ConfigError(
            f"{slot} is not the Python object that the run was started with",
            why=f"it was {description} (digest {digest}), now the digest is {current or 'unknown'}",
            fix=f"pass the same {slot}, or start a new run",
        )
    return _objects[slot]


def describe(slot: str, value: Any) -> str:
    """How the plan names an object: module and name, or the number of rows."""
    if slot == "dataset":
        return "rows in memory: " + ", ".join(f"{len(rows)} {name}" for name, rows in splits_of(value).items())
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def digest_of(slot: str, value: Any) -> str:
    """Of rows; or of a function's source and the plain values that it closes over, "" where Python has no source."""
    if slot == "dataset":
        return _hashed(json.dumps(splits_of(value), sort_keys=True, default=str))
    named = value if inspect.isroutine(value) else type(value)
    try:
        source = inspect.getsource(named)
    except (OSError, TypeError):
        return ""
    closure = inspect.getclosurevars(named).nonlocals if inspect.isfunction(named) else {}
    plain = {k: v for k, v in sorted(closure.items()) if isinstance(v, str | int | float | bool | None)}
    return _hashed(f"{source}{plain}")


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

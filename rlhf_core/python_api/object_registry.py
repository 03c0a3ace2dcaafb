"""Python objects of the run that is under way in this process, and how they are recognised."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.python_api.rows import splits_of
from rlhf_core.types.errors import ConfigError, RlhfError

_objects: dict[str, Any] = {}


@contextlib.contextmanager
def registered(objects: Mapping[str, Any]) -> Iterator[None]:
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
    """The object that a plan's entry stands for.

    Args:
        slot: the argument of ``train`` that it was.
        description: what the plan says of it.
        digest: of its source code or rows; "" recognises any.
    """
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

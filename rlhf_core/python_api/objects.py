"""Plain Python objects in the place of components: a reward function, rows in memory, a loss.

The objects themselves cannot be written into a plan. What a plan keeps is a description and, where there is one, a
digest, so that a run is resumed with the very object it was begun with, or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from rlhf_core.batches import LossOutput
from rlhf_core.errors import ConfigError, DatasetError, RlhfError
from rlhf_core.python_api.config import PythonDatasetConfig, PythonLossConfig, PythonObjectConfig, PythonRewardConfig
from rlhf_core.types import Sample, Score, ScoreStatus

Row = Mapping[str, Any]
HELDOUT_NAMES = ("heldout", "test", "validation", "eval")
"""Splits of a mapping that are taken for the held-out rows, the first that is there."""

_held: dict[str, Any] = {}


def read_once(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The same objects, with rows that can be read again and again in the place of an iterator."""
    return {slot: splits_of(value) if slot == "dataset" else value for slot, value in objects.items()}


@contextlib.contextmanager
def held(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let configurations of this process find these objects, by slot.

    Raises:
        RlhfError: another run of this process is under way.
    """
    if _held.get("busy"):
        raise RlhfError(
            "another run of this process is under way",
            why="runs share torch's settings",
            fix="wait until it has ended, or start the second one in a process of its own",
        )
    _held.update(objects, busy=True)
    try:
        yield
    finally:
        _held.clear()


def held_object(config: PythonObjectConfig) -> Any:
    """The object that a plan's entry stands for.

    Raises:
        ConfigError: it was not passed in, or it is another one.
    """
    slot = type(config).slot
    if slot not in _held:
        raise ConfigError(
            f"the run's {slot} is a Python object: {config.description}",
            why="a plan holds its description, not the object itself",
            fix=f"in Python: rlhf_core.load_run(RUN).resume({slot}=...), with the same object",
        )
    digest = config_of(slot, _held[slot]).digest
    if config.digest and digest != config.digest:
        raise ConfigError(
            f"{slot} is another Python object than the run was started with",
            why=f"it was {config.description} (digest {config.digest}), now the digest is {digest or 'unknown'}",
            fix=f"pass the same {slot}, or start a new run",
        )
    return _held[slot]


def config_of(slot: str, value: Any) -> PythonObjectConfig:
    """What a plan says of an object.

    Raises:
        ConfigError: the object cannot serve there.
        DatasetError: rows that are no rows.
    """
    if slot == "dataset":
        splits = splits_of(value)
        count = ", ".join(f"{len(rows)} {name}" for name, rows in splits.items())
        text = json.dumps(splits, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return PythonDatasetConfig(description=f"rows in memory: {count}", digest=digest)
    cls = {"reward": PythonRewardConfig, "loss": PythonLossConfig}[slot]
    if not callable(value) and not hasattr(value, "score"):
        raise ConfigError(f"{slot} is a {type(value).__name__}", fix=f"pass a name, a Config, or a function as {slot}")
    return cls(description=_describe(value), digest=_digest_of_code(value))


def _describe(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _digest_of_code(value: Any) -> str:
    """Of the source, and of plain values that it closes over; "" where the source is not to be had."""
    named = value if inspect.isroutine(value) else type(value)
    try:
        source = inspect.getsource(named)
    except (OSError, TypeError):
        return ""
    closure = inspect.getclosurevars(named).nonlocals if inspect.isfunction(named) else {}
    plain = {k: v for k, v in sorted(closure.items()) if isinstance(v, str | int | float | bool | None)}
    return hashlib.sha256(f"{source}{plain}".encode()).hexdigest()[:16]


class PythonReward:
    """A function from samples to numbers as a reward.

    Args:
        config: what the plan says of it.
    """

    def __init__(self, config: PythonRewardConfig) -> None:
        self.function: Callable[[Sequence[Sample]], Any] = _method(held_object(config), "score")

    def score(self, samples: Sequence[Sample]) -> list[Any]:
        """One score per sample; a None or a number that is not finite is a missing score, never 0.0. What is neither a
        number nor a score, and another number of them than samples, is left to who called, as for any reward."""
        return [_score(value) for value in self.function(samples)]


def _score(value: Any) -> Any:
    if value is None:
        return Score.failed(ScoreStatus.MISSING, "the reward function returned None")
    if isinstance(value, Score):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    if not math.isfinite(number):
        return Score.failed(ScoreStatus.ERROR, f"the reward function returned {number}")
    return Score(number)


class PythonLoss:
    """A function from a batch to an unreduced loss.

    Args:
        config: what the plan says of it.
    """

    def __init__(self, config: PythonLossConfig) -> None:
        self.function: Callable[[Any], Any] = held_object(config)

    def __call__(self, batch: Any) -> LossOutput:
        """The loss, as the core takes it: a tensor ``[B, T]`` or ``[B]``, or a LossOutput."""
        loss = self.function(batch)
        return loss if isinstance(loss, LossOutput) else LossOutput(loss)


class PythonDataset:
    """Rows in memory.

    Args:
        config: what the plan says of them.
    """

    def __init__(self, config: PythonDatasetConfig) -> None:
        self.splits = splits_of(held_object(config))

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of ``train`` or ``heldout``."""
        return self.splits[split]

    def where(self, split: str, number: int) -> str:
        """How a row is named in errors."""
        return f"dataset passed in, {split} row {number + 1}"


def splits_of(value: Any) -> dict[str, list[Row]]:
    """``train`` and ``heldout`` rows of a list of rows, a ``datasets.Dataset``, a DataFrame, or a mapping of such.

    Raises:
        DatasetError: it is none of them, it has no rows, or a row is no mapping.
    """
    if not isinstance(value, Mapping):
        return {"train": _rows(value, "train"), "heldout": []}
    splits = cast("Mapping[str, Any]", value)
    if "train" not in splits:
        raise DatasetError(
            "the dataset has no split 'train'", why=f"it has {', '.join(map(str, splits))}", fix='{"train": [...]}'
        )
    name = next((n for n in HELDOUT_NAMES if n in splits), None)
    return {"train": _rows(splits["train"], "train"), "heldout": _rows(splits[name], name) if name else []}


def _rows(value: Any, split: str) -> list[Row]:
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a DataFrame
        value = value.to_dict(orient="records")
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


def _method(value: Any, name: str) -> Callable[..., Any]:
    return getattr(value, name, value)

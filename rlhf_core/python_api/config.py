"""Python objects that a run was given, how they are recognised, and what stands for them in a plan."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.types.errors import ConfigError, DatasetError, RlhfError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext

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


class PythonObjectConfig(ComponentConfig):
    """An object that :func:`rlhf_core.train` was given; a run with one cannot be repeated from its plan alone."""

    slot: ClassVar[str] = ""
    """The argument of ``train`` that it was."""

    name: str = "python"
    description: str = ""
    """Module and name of the object, or what it holds."""
    digest: str = ""
    """Of its source code or rows (16 hex digits); empty where there is none."""
    reproducible_from_file: bool = False
    """Always false: the plan does not hold the object."""

    def find(self) -> Any:
        """The object that this stands for."""
        if self.slot not in _objects:
            raise ConfigError(
                f"the run's {self.slot} is a Python object: {self.description}",
                why="a plan holds its description, not the object itself",
                fix=f"in Python: rlhf_core.load_run(RUN).resume({self.slot}=...), with the same object",
            )
        current = digest_of(self.slot, _objects[self.slot])
        if self.digest and current != self.digest:
            raise ConfigError(
                f"{self.slot} is not the Python object that the run was started with",
                why=f"it was {self.description} (digest {self.digest}), now the digest is {current or 'unknown'}",
                fix=f"pass the same {self.slot}, or start a new run",
            )
        return _objects[self.slot]

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a run whose object is not there, or whose processes it cannot reach."""
        self.find()
        if ctx.world_size > 1:
            raise ConfigError(
                f"{self.slot} is a Python object, and the run has {ctx.world_size} processes",
                why="it cannot be sent to the other processes",
                fix=f"make it a plugin (rlhf plugins new NAME --kind {self.slot}), or train with nproc=1",
            )


class PythonRewardConfig(PythonObjectConfig):
    """A reward function that was passed to :func:`rlhf_core.train`."""

    slot: ClassVar[str] = "reward"
    component: ClassVar[str] = "rlhf_core.python_api.objects:PythonReward"


class PythonLossConfig(PythonObjectConfig):
    """A loss function that was passed to :func:`rlhf_core.train`."""

    slot: ClassVar[str] = "loss"
    component: ClassVar[str] = "rlhf_core.python_api.objects:PythonLoss"


class PythonDatasetConfig(PythonObjectConfig):
    """Rows that were passed to :func:`rlhf_core.train`."""

    slot: ClassVar[str] = "dataset"
    component: ClassVar[str] = "rlhf_core.python_api.objects:PythonDataset"
    downloads: ClassVar[bool] = False


def config_of(slot: str, value: Any) -> PythonObjectConfig:
    """What a plan says of an object."""
    classes = {"reward": PythonRewardConfig, "loss": PythonLossConfig, "dataset": PythonDatasetConfig}
    if slot != "dataset" and not callable(value) and not hasattr(value, "score"):
        raise ConfigError(f"{slot} is a {type(value).__name__}", fix=f"pass a name, a Config, or a function as {slot}")
    return classes[slot](description=describe(slot, value), digest=digest_of(slot, value))

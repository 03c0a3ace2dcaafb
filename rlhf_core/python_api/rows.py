"""Rows in memory: lists, ``datasets.Dataset`` objects, DataFrames, and mappings of splits to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rlhf_core.types.errors import DatasetError

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

"""Rows of files and of the pocket world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data.files import FileRows, read_parquet, read_rows

if TYPE_CHECKING:
    from rlhf_core.data.config import JsonlConfig

Row = Mapping[str, Any]


class JsonSource:
    """Rows of one or two files of JSON.

    Args:
        config: the files.
    """

    read: Callable[[str], FileRows] = staticmethod(read_rows)
    """Reader of one file."""

    def __init__(self, config: JsonlConfig) -> None:
        self.config = config
        self._positions: dict[str, list[str]] = {}

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of a split; the held-out split is empty without ``heldout_path``."""
        path = self._path(split)
        if not path:
            return []
        file = self.read(path)
        self._positions[split] = file.positions
        return file.rows

    def where(self, split: str, number: int) -> str:
        """File and line of a row that :meth:`rows` returned."""
        return f"{self._path(split)}, {self._positions[split][number]}"

    def _path(self, split: str) -> str | None:
        return self.config.path if split == "train" else self.config.heldout_path


class ParquetSource(JsonSource):
    """Rows of one or two Parquet files."""

    read = staticmethod(read_parquet)

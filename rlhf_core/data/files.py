"""Reads JSON and Parquet files; errors name the place of a broken row."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.data.jsonl import NotJson, flaw_of, named_once
from rlhf_core.data.schema import RawRow, RowReader
from rlhf_core.types.errors import DatasetError, did_you_mean, error_text
from rlhf_core.types.frozen import FrozenDict, Lazy, Packed

if TYPE_CHECKING:
    from rlhf_core.data.config import JsonlConfig


def cache_folder() -> Path:
    """``$RLHF_CACHE``, by default ``~/.cache/rlhf``. Nothing is made."""
    return Path(os.environ.get("RLHF_CACHE") or Path.home() / ".cache" / "rlhf").expanduser()


Row = Mapping[str, Any]
_broken: ContextVar[list[DatasetError] | None] = ContextVar("broken rows", default=None)


@contextmanager
def collected_broken_rows() -> Generator[list[DatasetError], None, None]:
    """Leave broken rows out and collect what is wrong with each, where otherwise the first ends the reading."""
    errors: list[DatasetError] = []
    token = _broken.set(errors)
    try:
        yield errors
    finally:
        _broken.reset(token)


def refuse_row(error: DatasetError) -> None:
    """Raise the error of one row, or keep it within :func:`collected_broken_rows`; the caller leaves the row out."""
    errors = _broken.get()
    if errors is None:
        raise error
    errors.append(error)


class CheckedRows(Packed[Row]):
    """Rows that :func:`flaw_of` let in, which refuse changes; a list of them is not one."""

    def make(self, number: int) -> Row:
        """The row of a number."""
        return FrozenDict(super().make(number))


class FileRows(NamedTuple):
    """Rows of a file and the place of each, e.g. ``"line 17"``."""

    rows: Sequence[Row]
    positions: Sequence[str]

    def records(self, file: str) -> tuple[RowReader, list[RawRow]]:
        """The rows with their places in ``file``, and the reader of their columns, which no setting maps."""
        rows = enumerate(zip(self.rows, self.positions))
        records = [RawRow(row, number, f"{file}, {position}") for number, (row, position) in rows]
        return RowReader(Path(file).name, {}, mapped=False), records


def check_file(path: str, what: str = "dataset", setting: str = "--dataset") -> None:
    """Refuse a missing file; ``what`` names its kind, and ``setting`` what to check.

    Raises:
        DatasetError: names it, and near files in its folder.
    """
    file = Path(path).expanduser()
    if file.is_file():
        return
    if file.is_dir():
        names = ", ".join(sorted(p.name for p in file.iterdir())[:5]) or "nothing"
        fix = "name one file, or read the folder with dataset.name=hub" if what == "dataset" else "name one file"
        raise DatasetError(f"{what} '{path}' is a folder, not a file", why=f"it holds {names}", fix=fix)
    if not file.parent.is_dir():
        raise DatasetError(
            f"{what} '{path}' does not exist", why=f"there is no folder '{file.parent}'", fix=f"check {setting}"
        )
    near = did_you_mean(file.name, [p.name for p in file.parent.glob("*")])
    raise DatasetError(f"{what} '{path}' does not exist", fix=near or f"check {setting}")


def read_rows(path: str) -> FileRows:
    """Read JSON lines or one JSON array; ``.gz`` is unpacked.

    Raises:
        DatasetError: missing, empty, or a broken line (file and line number).
    """
    check_file(path)
    return parse_json(read_text(path), path)


def parse_json(text: str, path: str, what: str = "dataset") -> FileRows:
    """Rows of a text; arguments and errors as in :func:`read_rows`."""
    is_array = text.lstrip()[:1] == "["
    return _not_empty(_numbered(_decoded(text, path), path) if is_array else _lines(text, path), path, what)


def read_text(path: str, what: str = "dataset") -> str:
    """All of a file; ``.gz`` is unpacked."""
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(Path(path).expanduser(), "rt", encoding="utf-8-sig") as file:
            return str(file.read())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        line = ""
        if isinstance(error, UnicodeDecodeError):
            with opener(Path(path).expanduser(), "rb") as file:
                line = next(
                    (f", line {n}" for n, row in enumerate(file, 1) if row != row.decode("utf-8", "ignore").encode()),
                    "",
                )
        fix = "it must be UTF-8 text, whole, and packed with gzip if it is called .gz"
        raise DatasetError(f"{what} '{path}'{line} cannot be read", why=error_text(error), fix=fix) from error


_DECODER = json.JSONDecoder(object_pairs_hook=named_once)


def _decoded(text: str, path: str, line: int | None = None) -> Any:
    """The JSON value that a whole file is, or one ``line`` of it."""
    place = path if line is None else f"{path}:{line}"
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        why = f"the {'text' if line is None else 'line'} begins {text[:60]!r}"
        fix = "correct or remove it; each line must be one whole object, or the file one array of objects"
        raise DatasetError(f"{path}:{line or error.lineno}: not valid JSON: {error.msg}", why=why, fix=fix) from error
    except NotJson as error:
        raise DatasetError(f"{place}: {error}", fix="name every key of an object once") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise DatasetError(f"{place}: a value cannot be read", why=str(error), fix="correct or remove it") from error


def _numbered(rows: Sequence[Any], path: str) -> FileRows:
    numbers = [n for n, row in enumerate(rows, 1) if _is_row(row, f"{path}, row {n}")]
    return FileRows(CheckedRows(rows[n - 1] for n in numbers), Lazy("row {}".format, numbers))


def _lines(text: str, path: str) -> FileRows:
    rows, numbers = CheckedRows(), list[int]()
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON text may hold U+2028 and its like
        if not line.strip():
            continue
        try:
            row = _decoded(line, path, number)
        except DatasetError as error:
            refuse_row(error)
        else:
            if _is_row(row, f"{path}:{number}"):
                rows.append(row)
                numbers.append(number)
    return FileRows(rows, Lazy("line {}".format, numbers))


def _is_row(row: object, where: str) -> bool:
    if not isinstance(row, dict):
        what = f"{where}: expected an object, got {type(row).__name__}"
        refuse_row(DatasetError(what, why=f"it is {str(row)[:60]!r}", fix='write {"prompt": ...}'))
    elif flaw := flaw_of(row):
        refuse_row(DatasetError(f"{where}: {flaw}", fix="correct or remove the row"))
    else:
        return True
    return False


def read_parquet(path: str) -> FileRows:
    """Read one Parquet file."""
    import pyarrow.parquet

    check_file(path)
    try:
        rows = pyarrow.parquet.read_table(Path(path).expanduser()).to_pylist()
    except (OSError, ValueError) as error:
        raise DatasetError(f"dataset '{path}' is not a Parquet file", why=str(error).splitlines()[0]) from error
    return _not_empty(_numbered(rows, path), path)


def _not_empty(file_rows: FileRows, path: str, what: str = "dataset") -> FileRows:
    if not file_rows.rows:
        raise DatasetError(f"{what} '{path}' is empty", fix="give a file with at least one row")
    return file_rows


class JsonSource:
    """Rows of one or two files of JSON."""

    read: Callable[[str], FileRows] = staticmethod(read_rows)
    """Reader of one file."""

    def __init__(self, config: JsonlConfig) -> None:
        self.config = config
        self._positions: dict[str, Sequence[str]] = {}

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

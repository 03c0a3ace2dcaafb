"""Records of a run: JSON files, and append-only JSONL files that can be cut back to a remembered offset, which is what
exact resume needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rlhf_core.types.errors import RunDirError, disk_error, error_text


class NotJson(ValueError):
    """Why a text is not one JSON value, in words for whoever wrote it."""


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook``: readers of JSON keep the last of two values without a word."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise NotJson(f"the key {next(n for n in names if names.count(n) > 1)!r} occurs twice")
    return row


def _constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not a JSON number")


_BEGINS = frozenset('{["-0123456789tfnNI')
_DECODER = json.JSONDecoder(object_pairs_hook=named_once, parse_constant=_constant)


def read_value(text: str, at: int = 0) -> tuple[Any, int]:
    """(The value that begins at ``at`` or after blanks, the place after it)."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    if text[at : at + 1] not in _BEGINS:  # an error of the decoder counts all lines before it
        raise NotJson("it does not begin with a value")
    try:
        value, end = _DECODER.raw_decode(text, at)
        text[at:end].encode()
        if "\\u" in text[at:end]:
            json.dumps(value, ensure_ascii=False).encode()
    except NotJson:
        raise
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise NotJson("it holds half of a character (a lone surrogate)") from error
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} (character {error.pos - at + 1})") from error
    except ValueError as error:  # an integer of thousands of digits
        raise NotJson(str(error).partition(";")[0]) from error
    return value, end


def read_whole(text: str) -> Any:
    """The one value that a text is."""
    value, end = read_value(text)
    if text[end:].strip():
        raise NotJson(f"more follows after the value: {text[end:].strip()[:40]!r}")
    return value


def flaw_of(row: Any) -> str:
    """What keeps a row out, with its column: text that is not UTF-8, a number that is not finite; "" if nothing does.

    Example:
        >>> flaw_of({"prompt": "2 + 2", "margin": float("inf")})
        "column 'margin' holds a number that is not finite (NaN, Infinity, or one too large)"
    """
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False, skipkeys=True, default=_plain).encode()
    except UnicodeEncodeError:
        flaw = "holds half of a character (a lone surrogate), which is not UTF-8"
    except RecursionError:
        flaw = "is nested too deeply"
    except ValueError:
        flaw = "holds a number that is not finite (NaN, Infinity, or one too large)"
    else:
        return ""
    columns = row.items() if isinstance(row, Mapping) else ()
    return f"column {next((repr(name) for name, value in columns if flaw_of([value])), '?')} {flaw}"


def _plain(value: Any) -> Any:
    """A numpy scalar's number; of anything else that JSON has no form for only its type counts."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else type(value).__name__


def json_values(value: Any) -> Any:
    """Turn numpy scalars and arrays, enums and non-finite floats into JSON values."""
    if isinstance(value, Mapping):
        return {str(k): json_values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(v) for v in value]
    if hasattr(value, "tolist"):
        return json_values(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_line(row: Mapping[str, Any]) -> str:
    """A row as a line of a JSONL file."""
    return json.dumps(json_values(row), ensure_ascii=False) + "\n"


def append_lines(path: Path, lines: str) -> None:
    """Append to a file that other processes append to in turn; when this returns they see it, on any machine.

    Raises:
        RunDirError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise disk_error(path, error) from error


class JsonlFile:
    """One JSONL file, opened for appending, created if absent; cut to ``keep_bytes`` first (None keeps all of it)."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        self.path = path
        path.touch()
        if keep_bytes is not None:
            os.truncate(path, min(keep_bytes, path.stat().st_size))
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._hashed, self._hash = 0, hashlib.sha256()

    @classmethod
    def resume(cls, path: Path) -> JsonlFile:
        """Open a file to append after its last complete row: a killed writer may have left half of one."""
        return cls(path, path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; in the operating system's hands when this returns.

        Raises:
            RunDirError: the disk is full.
        """
        try:
            self._file.write(json_line(row))
            self._file.flush()
        except OSError as error:
            raise disk_error(self.path, error) from error

    def offset(self) -> tuple[int, str]:
        """Length in bytes, and hash of them, after making the file durable; see :func:`begins_with`.

        Raises:
            RunDirError: the disk is full.
        """
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from error
        with self.path.open("rb") as file:
            file.seek(self._hashed)
            while chunk := file.read(1 << 20):
                self._hash.update(chunk)
                self._hashed += len(chunk)
        return self._hashed, self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


def begins_with(path: Path, offset: tuple[int, str]) -> bool:
    """Whether a file still begins with what it held when its :meth:`JsonlFile.offset` was taken."""
    left, digest = offset[0], hashlib.sha256()
    if not path.is_file():
        return left == 0
    with path.open("rb") as file:
        while chunk := file.read(min(left, 1 << 20)):
            digest.update(chunk)
            left -= len(chunk)
    return left == 0 and digest.hexdigest() == offset[1]


REMEDIES = {
    "plan.json": "take it from a copy of the run's folder, or start a new run from the model of a checkpoint",
    "summary.json": "remove it: rlhf train --resume writes it again",
    "rows.json": "remove it: which prompts the run was trained on is then not known",
    "state.json": "remove the checkpoint's folder to go on from the one before, or start a new run from its model",
}


@contextlib.contextmanager
def record_of_run(path: Path, place: str = "") -> Generator[None, None, None]:
    """Whatever cannot be done with a file of a run's folder is the file's fault; ``place``: a line's in it.

    Raises:
        RunDirError: names the file, and what to do.
    """
    try:
        yield
    except RunDirError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RunDirError(
            f"'{path}'{place} {'cannot be read' if isinstance(error, OSError) else 'is damaged'}",
            why=error_text(error),
            fix=REMEDIES.get(path.name, "take the file from a copy of the run's folder, or remove it")
            if not place
            else "take the file from a copy, or remove that line, whose step is then missing from what is shown",
        ) from error


def read_record(path: Path) -> dict[str, Any]:
    """The object that a JSON file of a run's folder holds; errors as of :func:`record_of_run`."""
    with record_of_run(path):
        return {**json.loads(path.read_text("utf-8"))}


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file; a torn last line (a killed writer) is left out.

    Raises:
        RunDirError: a line is damaged; names it.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                continue
            with record_of_run(path, f", line {number},"):
                row = {**json.loads(line)}
            yield row

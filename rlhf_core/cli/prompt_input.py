"""Prompts of a command line: texts, files and stdin, as JSON rows or one prompt a line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rlhf_core.data.files import FileRows
    from rlhf_core.types.rollouts import Prompt

STDIN = "-"


class PromptRow(NamedTuple):
    """A prompt, and the row that it was read from."""

    prompt: Prompt
    row: Mapping[str, Any]
    """Every column, the prompt's own included; {} for a plain line."""


def read_prompts(texts: Sequence[str], files: Sequence[str], *, lines: bool = False) -> list[PromptRow]:
    """Prompts given as texts, then those of files; ``-`` is stdin.

    A file of JSON objects, one a line or in an array, has a ``prompt`` or ``messages`` in each; any other has a prompt
    in each line. Empty lines are skipped.

    Args:
        texts: prompts.
        files: names; ``-`` only once.
        lines: every line is a prompt, even if it looks like JSON.
    """
    from rlhf_core.types.errors import ConfigError
    from rlhf_core.types.rollouts import Prompt

    if not texts and not files:
        raise ConfigError("there is no prompt", fix='--prompt "What is 2 + 3?", FILE, or - for stdin')
    if any(not t.strip() for t in texts):
        raise ConfigError("--prompt is empty", fix='--prompt "What is 2 + 3?"')
    if list(files).count(STDIN) > 1:
        raise ConfigError("- is given twice", why="stdin can be read once", fix="leave one out")
    rows = [PromptRow(Prompt(f"prompt/{i}", ({"role": "user", "content": t},)), {}) for i, t in enumerate(texts)]
    for file in files:
        rows += _rows_of(file, lines)
    return rows


def _rows_of(file: str, lines: bool) -> list[PromptRow]:
    from rlhf_core.data.files import check_file, parse_json, read_parquet, read_text
    from rlhf_core.data.schema import RawRow, RowReader
    from rlhf_core.types.errors import DatasetError
    from rlhf_core.types.rollouts import Prompt

    name, stem = ("stdin", "stdin") if file == STDIN else (file, Path(file).stem)
    if file != STDIN:
        check_file(file, "prompt file", "the file's name")
    if file.endswith(".parquet"):
        rows, positions = read_parquet(file)
    else:
        text = _stdin() if file == STDIN else read_text(file, "prompt file")
        plain = lines or file.endswith(".txt") or text.lstrip()[:1] not in ("{", "[")
        rows, positions = _lines(text, name) if plain else parse_json(text, name, "prompt file")
    reader = RowReader(Path(name).name, {}, mapped=False)
    read: list[PromptRow] = []
    for i, (row, position) in enumerate(zip(rows, positions)):
        record = RawRow(row, i, f"{name}, {position}")
        prompt = Prompt(str(row.get("id", f"{stem}/{i}")), reader.prompt(record), tools=reader.tools(record))
        if not prompt.text.strip():
            raise DatasetError("a prompt is empty", where=record.where, fix="fill or remove that row")
        read.append(PromptRow(prompt, row))
    return read


def _lines(text: str, name: str) -> FileRows:
    from rlhf_core.data.files import FileRows
    from rlhf_core.types.errors import DatasetError

    numbered = [(n, line.rstrip("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise DatasetError(f"there is no prompt in {name}", why="every line is empty", fix="write one prompt a line")
    return FileRows([{"prompt": line} for _, line in numbered], [f"line {n}" for n, _ in numbered])


def _stdin() -> str:
    from rlhf_core.types.errors import DatasetError

    if sys.stdin.isatty():
        print("reading prompts, one a line; Ctrl-D ends them", file=sys.stderr)
    stream = getattr(sys.stdin, "buffer", None)
    try:
        return sys.stdin.read().removeprefix("\ufeff") if stream is None else stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError("stdin is not text", why=str(error), fix="it must be UTF-8") from error

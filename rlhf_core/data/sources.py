"""Rows of files, the hub and the pocket world."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.config import HubConfig, JsonlConfig, ParquetConfig, PocketConfig, check_file
from rlhf_core.errors import DatasetError
from rlhf_core.types import Sample

Row = Mapping[str, Any]


def read_rows(path: str) -> list[Row]:
    """Read JSON lines or one JSON array.

    Raises:
        DatasetError: missing, empty, or a broken line (file and line number).
    """
    check_file(path)
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(Path(path).expanduser(), "rt", encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"dataset '{path}' cannot be read: {error}") from error
    rows = _array(text, path) if text.lstrip().startswith("[") else _lines(text, path)
    if not rows:
        raise DatasetError(f"dataset '{path}' is empty", fix="give a file with at least one row")
    return rows


def _array(text: str, path: str) -> list[Row]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
    bad = next((i for i, r in enumerate(rows) if not isinstance(r, dict)), None)
    if bad is not None:
        raise DatasetError(f"{path}: row {bad + 1} is not an object", why=f"got {str(rows[bad])[:60]!r}")
    return rows


def _lines(text: str, path: str) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DatasetError(f"{path}:{number}: not valid JSON: {error.msg}", why=f"the line begins {line[:60]!r}",
                               fix="mend or remove that line") from error
        if not isinstance(row, dict):
            raise DatasetError(f"{path}:{number}: expected an object, got {type(row).__name__}", fix='write {"prompt": ...}')
        rows.append(row)
    return rows


class JsonlSource:
    """Rows of one or two JSON files."""

    def __init__(self, config: JsonlConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of a split; the held-out split is empty without ``heldout_path``."""
        path = self.config.path if split == "train" else self.config.heldout_path
        return read_rows(path) if path else []


class ParquetSource:
    """Rows of one or two Parquet files."""

    def __init__(self, config: ParquetConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of a split."""
        import pyarrow.parquet

        path = self.config.path if split == "train" else self.config.heldout_path
        if not path:
            return []
        check_file(path)
        try:
            rows = pyarrow.parquet.read_table(Path(path).expanduser()).to_pylist()
        except (OSError, ValueError) as error:
            raise DatasetError(f"dataset '{path}' is not a Parquet file: {error}") from error
        if not rows:
            raise DatasetError(f"dataset '{path}' is empty", fix="give a file with at least one row")
        return rows


class HubSource:
    """Rows through ``datasets``."""

    def __init__(self, config: HubConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of a split; the held-out split is empty without ``heldout_split``."""
        import datasets

        name = self.config.split if split == "train" else self.config.heldout_split
        if name is None:
            return []
        try:
            found = datasets.load_dataset(self.config.path, self.config.subset, split=name, revision=self.config.revision)
        except Exception as error:
            raise DatasetError(
                f"dataset '{self.config.path}' (split '{name}') cannot be loaded", why=f"{type(error).__name__}: {error}",
                fix="check the id, subset and split; without a network give a local folder or file") from error
        rows = [dict(r) for r in found]  # pyright: ignore[reportArgumentType, reportCallIssue]
        if not rows:
            raise DatasetError(f"dataset '{self.config.path}' (split '{name}') is empty")
        return rows


class PocketSource:
    """The generated world. Its gold score stays here: neither prompts nor rewards carry it."""

    def __init__(self, config: PocketConfig) -> None:
        self.subset = config.subset
        if config.subset == "assistant":
            self.gold = self._gold

    def rows(self, split: str) -> Sequence[Row]:
        """Prompts; for pairs and demonstrations see :meth:`pairs` and :meth:`demonstrations`."""
        from rlhf_core.pocket.data import load_prompts

        return load_prompts(self.subset, "train" if split == "train" else "heldout")

    def pairs(self, split: str) -> Sequence[Row]:
        """Preference pairs of the assistant."""
        from rlhf_core.pocket.data import load_pairs

        if self.subset != "assistant":
            raise DatasetError(f"pocket/{self.subset} has no preference pairs", fix="use pocket/assistant")
        return load_pairs("train" if split == "train" else "heldout")

    def demonstrations(self, split: str) -> Sequence[Row]:
        """Good answers to imitate."""
        from rlhf_core.pocket.data import load_sft

        return load_sft(self.subset, "train" if split == "train" else "heldout")

    def _gold(self, sample: Sample) -> Mapping[str, float]:
        from rlhf_core.pocket.gold import gold_score, is_hollow, words

        meta = sample.prompt.meta
        score = gold_score(str(meta["attribute"]), str(sample.prompt.answer), sample.completion)
        return {**score._asdict(), "hollow": float(is_hollow(sample.completion)), "words": float(len(words(sample.completion)))}

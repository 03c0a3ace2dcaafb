"""Rows of files and of the pocket world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data.files import FileRows, index_rows, read_parquet, read_rows
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.rollouts import Sample

if TYPE_CHECKING:
    from rlhf_core.data.config import JsonlConfig, PocketConfig

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
        self._places: dict[str, list[str]] = {}

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of a split; the held-out split is empty without ``heldout_path``."""
        path = self._path(split)
        if not path:
            return []
        file = self.read(path)
        self._places[split] = file.places
        return file.rows

    def where(self, split: str, number: int) -> str:
        """File and line of a row that :meth:`rows` returned."""
        return f"{self._path(split)}, {self._places[split][number]}"

    def _path(self, split: str) -> str | None:
        return self.config.path if split == "train" else self.config.heldout_path


class ParquetSource(JsonSource):
    """Rows of one or two Parquet files."""

    read = staticmethod(read_parquet)


class PocketSource:
    """The generated world. What the gold score needs stays here: neither prompts nor rewards carry it."""

    def __init__(self, config: PocketConfig) -> None:
        self.subset = config.subset
        self._facts: dict[str, Row] = {}
        if config.subset == "assistant":
            self.gold = self._gold

    def rows(self, split: str) -> Sequence[Row]:
        """Prompts; arithmetic's carry their answer, the assistant's do not."""
        from rlhf_plugin_pocket.data import load_prompts

        rows = load_prompts(self.subset, "train" if split == "train" else "heldout")
        if self.subset != "assistant":
            return rows
        self._facts |= index_rows(rows, "id")
        return [{"id": row["id"], "prompt": row["prompt"]} for row in rows]

    def pairs(self, split: str) -> Sequence[Row]:
        """Preference pairs of the assistant."""
        from rlhf_plugin_pocket.data import load_pairs

        if self.subset != "assistant":
            raise DatasetError(f"pocket/{self.subset} has no preference pairs", fix="use pocket/assistant")
        return load_pairs("train" if split == "train" else "heldout")

    def demonstrations(self, split: str) -> Sequence[Row]:
        """Good answers to imitate."""
        from rlhf_plugin_pocket.data import load_sft

        return load_sft(self.subset, "train" if split == "train" else "heldout")

    def _gold(self, sample: Sample) -> Mapping[str, float]:
        from rlhf_plugin_pocket.gold import gold_score, is_hollow, words

        fact, text = self._facts[sample.prompt.id], sample.completion
        score = gold_score(str(fact["attribute"]), str(fact["answer"]), text)
        return {**score._asdict(), "hollow": float(is_hollow(text)), "words": float(len(words(text)))}

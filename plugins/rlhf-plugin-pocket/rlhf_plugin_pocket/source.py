"""Rows of the pocket world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_core.rewards import Sample
from rlhf_plugin_pocket.config import PocketConfig

Row = Mapping[str, Any]


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
        self._facts |= {row["id"]: row for row in rows}
        return [{"id": row["id"], "prompt": row["prompt"]} for row in rows]

    def pairs(self, split: str) -> Sequence[Row]:
        from rlhf_plugin_pocket.data import load_pairs

        if self.subset != "assistant":
            raise DatasetError(f"pocket/{self.subset} has no preference pairs", fix="use pocket/assistant")
        return load_pairs("train" if split == "train" else "heldout")

    def demonstrations(self, split: str) -> Sequence[Row]:
        from rlhf_plugin_pocket.data import load_sft

        return load_sft(self.subset, "train" if split == "train" else "heldout")

    def _gold(self, sample: Sample) -> Mapping[str, float]:
        from rlhf_plugin_pocket.gold import gold_score, is_hollow, words

        fact, text = self._facts[sample.prompt.id], sample.completion
        score = gold_score(str(fact["attribute"]), str(fact["answer"]), text)
        return {**score._asdict(), "hollow": float(is_hollow(text)), "words": float(len(words(text)))}

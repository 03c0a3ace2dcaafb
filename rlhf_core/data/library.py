"""All rows of a run: sources mixed, columns mapped, splits made. What is dropped is counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rlhf_core.config.base import ComponentConfig
from rlhf_core.config.data import DatasetSettings, SourceSettings
from rlhf_core.context import BuildContext
from rlhf_core.data.schema import Reader
from rlhf_core.errors import DatasetError
from rlhf_core.protocols import DatasetSource, GoldScorer
from rlhf_core.registry import check_component
from rlhf_core.types import Demonstration, Message, PreferencePair, Prompt, Sample

T = TypeVar("T")
Row = Mapping[str, Any]


class Source:
    """One dataset of the mixture."""

    def __init__(self, settings: SourceSettings, shared: DatasetSettings, ctx: BuildContext) -> None:
        self.settings, self.shared = settings, shared
        self.label = settings.label or _label(settings.source)
        self.component: DatasetSource = settings.source.build(ctx)
        check_component("dataset", self.component, settings.source.name)
        self.reader = Reader(self.label, settings.columns)

    def rows(self, kind: str, split: str) -> list[tuple[int, Row]]:
        """(row number, row) of a split; rows are set aside by a hash where there is no held-out split."""
        read = getattr(self.component, kind, self.component.rows)
        rows = list(enumerate(read(split)))
        if split == "heldout" and not rows:
            rows = [(n, r) for n, r in self._all(read) if self._held(n)]
        elif split == "train" and not list(self._peek(read)):
            rows = [(n, r) for n, r in self._all(read) if not self._held(n)]
        self.reader.check_columns([r for _, r in rows[:1]])
        return rows[: self.shared.limit]

    def _all(self, read: Callable[[str], Sequence[Row]]) -> list[tuple[int, Row]]:
        return list(enumerate(read("train")))

    def _peek(self, read: Callable[[str], Sequence[Row]]) -> Sequence[Row]:
        return read("heldout")

    def _held(self, number: int) -> bool:
        return random.Random(f"{self.label}/{number}").random() < self.shared.heldout_fraction

    def conversation(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Apply prompt template and system prompt."""
        if self.settings.prompt_template:
            last = {"role": "user", "content": self.settings.prompt_template.replace("{prompt}", messages[-1]["content"])}
            messages = (*messages[:-1], last)
        if self.shared.system_prompt and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self.shared.system_prompt}, *messages)
        return messages

    def name(self, row: Row, number: int, split: str) -> str:
        """Unique id of a row; its own if it has one."""
        own = self.reader.get(row, "id")
        return f"{self.label}/{own}" if own is not None else f"{self.label}/{split}/{number:06d}"


def _label(source: ComponentConfig) -> str:
    options = source.model_dump()
    stem = str(options.get("path", "")).rstrip("/").rsplit("/", 1)[-1].split(".")[0]
    return stem or "/".join(str(v) for v in (source.name, options.get("subset")) if v)


class Datasets:
    """Prompts, pairs and demonstrations of a run.

    Args:
        settings: sources and what to do with them.
        ctx: used to build the sources.
    """

    def __init__(self, settings: DatasetSettings, ctx: BuildContext) -> None:
        self.settings = settings
        self.sources = [Source(s, settings, ctx) for s in settings.sources]
        labels = Counter(s.label for s in self.sources)
        twice = [name for name, n in labels.items() if n > 1]
        if twice:
            raise DatasetError(f"two sources are called '{twice[0]}'", fix="give each a label")
        self.counts: Counter[str] = Counter()
        """Rows dropped, by reason."""

    @property
    def weights(self) -> dict[str, float]:
        """Source label -> weight in the mixture."""
        return {s.label: s.settings.weight for s in self.sources}

    def prompts(self, split: str) -> list[Prompt]:
        """Prompts of ``train`` or ``heldout``."""
        return self._collect("rows", split, self._prompt)

    def pairs(self, split: str) -> list[PreferencePair]:
        """Preference pairs of a split; a pair whose sides are equal is dropped and counted."""
        found = self._collect("pairs", split, self._pair)
        kept = [p for p in found if p.chosen != p.rejected]
        self.counts["pairs_identical"] += len(found) - len(kept)
        return kept

    def demonstrations(self, split: str) -> list[Demonstration]:
        """Supervised examples of a split."""
        return self._collect("demonstrations", split, self._demonstration)

    def _collect(self, kind: str, split: str, make: Callable[[Source, Row, int, str], T]) -> list[T]:
        items = [make(s, row, number, split) for s in self.sources for number, row in s.rows(kind, split)]
        ids = Counter(getattr(i, "id") for i in items)  # noqa: B009
        twice = next((name for name, n in ids.items() if n > 1), None)
        if twice is not None:
            raise DatasetError(f"id '{twice}' occurs {ids[twice]} times", fix="ids must be unique; drop the id column or mend it")
        if not items and split == "train":
            raise DatasetError("the dataset has no rows to train on", where=", ".join(s.label for s in self.sources))
        return items

    def _prompt(self, source: Source, row: Row, number: int, split: str) -> Prompt:
        reader = source.reader
        messages = source.conversation(reader.text_or_messages(row, number, "prompt", "messages", "question"))
        if not messages[-1]["content"].strip():
            raise DatasetError(f"dataset '{source.label}', row {number + 1}: the prompt is empty", fix="remove or fill that row")
        used = {reader.columns.get(c, c) for c in ("id", "prompt", "messages", "question", "answer")}
        meta = {k: v for k, v in row.items() if k not in used}
        return Prompt(source.name(row, number, split), messages, reader.answer(row, number, source.settings.answer_pattern),
                      source.label, meta)

    def _pair(self, source: Source, row: Row, number: int, split: str) -> PreferencePair:
        prompt, chosen, rejected = source.reader.pair(row, number)
        return PreferencePair(source.name(row, number, split), source.conversation(prompt), chosen, rejected,
                              float(source.reader.get(row, "margin") or 0.0), source.label)

    def _demonstration(self, source: Source, row: Row, number: int, split: str) -> Demonstration:
        reader = source.reader
        turns = reader.get(row, "messages", "conversations")
        if turns is not None and reader.get(row, "completion", "response") is None:
            messages = reader.messages(turns, number)
            prompt, text = messages[:-1], messages[-1]["content"]
        else:
            prompt = reader.text_or_messages(row, number, "prompt", "question", "instruction")
            text = str(reader.need(row, number, "completion", "response", "answer", "output"))
        return Demonstration(source.name(row, number, split), source.conversation(prompt), text, source.label)

    def own_rewards(self) -> dict[str, ComponentConfig]:
        """Source label -> the reward that only this source uses."""
        return {s.label: s.settings.reward for s in self.sources if s.settings.reward is not None}

    def has_gold(self, prompt: Prompt) -> bool:
        """Whether the prompt's source has a gold score."""
        return isinstance(self._source(prompt).component, GoldScorer)

    def gold(self, sample: Sample) -> Mapping[str, float] | None:
        """The gold score of a completion, None where its source has none."""
        component = self._source(sample.prompt).component
        return component.gold(sample) if isinstance(component, GoldScorer) else None

    def _source(self, prompt: Prompt) -> Source:
        return next(s for s in self.sources if s.label == prompt.source)

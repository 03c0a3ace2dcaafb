"""The pairs that a reward is tested on, read by the core's datasets, so that what training drops is dropped here
too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data import (
    DatasetError,
    Datasets,
    Media,
    Message,
    PreferencePair,
    Prompt,
    RawRow,
    RowReader,
    message_text,
)

STYLES = 3
"""RM-Bench: concise, detailed in plain text, detailed in Markdown."""


class Text(NamedTuple):
    """A response to a conversation."""

    prompt: tuple[Message, ...]
    completion: str
    row: Prompt = Prompt("", ())
    """What a verifier needs besides: source, reference answer, further columns."""
    media: tuple[Media, ...] = ()
    """The response's sound, where pairs are of clips."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal conversations with one answer."""
        return (prompt_key(self.prompt), self.completion, self.row.answer, self.media)

    @property
    def words(self) -> int:
        return len(self.completion.split())


def prompt_key(prompt: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((m["role"], message_text(m)) for m in prompt)


@dataclass(frozen=True, slots=True)
class Case:
    """One pair."""

    id: str
    chosen: Text
    rejected: Text
    subset: str = ""
    styles: tuple[int, int] | None = None
    """RM-Bench: which of the three styles chosen and rejected have."""

    @property
    def level(self) -> str:
        """RM-Bench: ``hard`` where rejected has the richer style, ``easy`` where chosen has it, else ``normal``."""
        if self.styles is None:
            return ""
        chosen, rejected = self.styles
        return "normal" if chosen == rejected else "hard" if chosen < rejected else "easy"


@dataclass(frozen=True)
class Cases:
    """All pairs of an evaluation and what was left out of them."""

    pairs: list[Case]
    split: str
    counts: Counter[str] = field(default_factory=Counter)


def read_cases(datasets: Datasets, split: str | None, limit: int | None, folder: Path = Path()) -> Cases:
    for name in (split,) if split else ("heldout", "train"):
        pairs, counts = _of_split(datasets, name, folder)
        if pairs:
            counts["pairs_beyond_limit"] = max(0, len(pairs) - (limit or len(pairs)))
            return Cases(pairs[:limit], name, +counts)
    raise DatasetError(
        f"there are no {split or ''} pairs to evaluate on".replace("  ", " "),
        where=", ".join(s.label for s in datasets.sources),
        fix="give a dataset with chosen and rejected columns, or another --split",
    )


def _of_split(datasets: Datasets, split: str, folder: Path) -> tuple[list[Case], Counter[str]]:
    """Pairs of one split and the reasons for which rows were left out; RM-Bench's grids where there are any."""
    grids: list[Case] = []
    rows: dict[str, tuple[RowReader, RawRow]] = {}
    for source in datasets.sources:
        for record in source.records("pairs", split, Counter()):
            rows[source.name(record, split)] = (source.reader, record)
            if record.row.get("chosen_audio") and record.row.get("rejected_audio"):
                grids.append(read_audio_pair(source.reader, record, source.label, folder))
            elif is_grid(record.row):
                grids += read_grid(source.reader, record, source.label)
    if grids:
        return grids, Counter()
    return [_case(pair, *rows[pair.id]) for pair in datasets.pairs(split)], Counter(datasets.counts)


def _case(pair: PreferencePair, reader: RowReader, record: RawRow) -> Case:
    subset = record.row.get("subset", record.row.get("domain"))
    row = row_of(reader, record, pair.source)
    return Case(
        pair.id,
        Text(pair.prompt, pair.chosen, row),
        Text(pair.prompt, pair.rejected, row),
        "" if subset is None else str(subset),
    )


def row_of(reader: RowReader, record: RawRow, source: str) -> Prompt:
    """Source, reference answer and further columns of a row, as a training run's prompts have them."""
    meta, _ = reader.rest(record, "completion", "completions", "response")
    return Prompt("", (), reader.answer(record, None), source, meta)


def read_audio_pair(reader: RowReader, record: RawRow, label: str, folder: Path) -> Case:
    """A pair of clips of one prompt; what they say may stand in ``chosen`` and ``rejected``."""
    prompt, row = reader.prompt(record), row_of(reader, record, label)
    sides = []
    for side in ("chosen", "rejected"):
        path = folder / Path(str(record.row[f"{side}_audio"])).expanduser()
        if not path.is_file():
            raise DatasetError(f"there is no file '{path}'", where=record.where, fix=f"correct '{side}_audio'")
        text = record.row.get(side)
        sides.append(Text(prompt, text if isinstance(text, str) else "", row, (Media("audio", str(path.absolute())),)))
    subset = record.row.get("subset", record.row.get("engine", ""))
    return Case(f"{label}/{record.row.get('id', record.number)}", *sides, subset=str(subset))


def is_grid(row: Mapping[str, Any]) -> bool:
    """Whether a row has several chosen and rejected texts, as RM-Bench's do."""

    def is_list_of_texts(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)

    return is_list_of_texts(row.get("chosen")) and is_list_of_texts(row.get("rejected"))


def read_grid(reader: RowReader, record: RawRow, label: str) -> list[Case]:
    """The nine pairs of an RM-Bench row (Liu et al. 2024), each chosen style against each rejected one."""
    prompt, chosen, rejected = reader.prompt(record), record.row["chosen"], record.row["rejected"]
    if len(chosen) != STYLES or len(rejected) != STYLES or not all(text.strip() for text in (*chosen, *rejected)):
        raise DatasetError(
            "an RM-Bench row needs three chosen and three rejected texts, none of them empty",
            where=record.where,
            fix="fix or remove that row",
        )
    name = f"{label}/{record.row.get('id', record.number)}"
    subset = str(record.row.get("domain", record.row.get("subset", "")))
    row = row_of(reader, record, label)
    return [
        Case(f"{name}#{i}{j}", Text(prompt, good, row), Text(prompt, bad, row), subset, (i, j))
        for i, good in enumerate(chosen)
        for j, bad in enumerate(rejected)
    ]

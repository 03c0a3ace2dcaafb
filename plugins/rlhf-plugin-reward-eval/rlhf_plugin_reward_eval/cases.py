"""The pairs that a reward is tested on, read by the core's datasets, so that what training drops is dropped here
too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data import DatasetError, Datasets, Media, Message, PreferencePair, Prompt, message_text

STYLES = 3
"""RM-Bench: concise, detailed in plain text, detailed in Markdown."""
TIES = "ties"
"""RewardBench 2: the subset with several right responses."""
Row = Mapping[str, Any]
COMPLETIONS = ("completion", "completions", "response")
"""Columns that are no further columns of a row."""


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
    id: str
    chosen: Text
    rejected: Text
    subset: str = ""
    styles: tuple[int, int] | None = None
    """RM-Bench: which of the three styles chosen and rejected have."""
    row: str = ""
    """RewardBench 2: the row that the pair is of."""

    @property
    def level(self) -> str:
        """RM-Bench: ``hard`` where rejected has the richer style, ``easy`` where chosen has it, else ``normal``."""
        if self.styles is None:
            return ""
        chosen, rejected = self.styles
        return "normal" if chosen == rejected else "hard" if chosen < rejected else "easy"


@dataclass(frozen=True)
class Cases:
    pairs: list[Case]
    split: str
    counts: Counter[str] = field(default_factory=Counter)


def read_cases(datasets: Datasets, split: str | None, limit: int | None, folder: Path = Path()) -> Cases:
    for name in (split,) if split else ("heldout", "train"):
        pairs, counts = _of_split(datasets, name, folder)
        if pairs:
            kept = pairs[: _to_row_end(pairs, limit or len(pairs))]
            counts["pairs_beyond_limit"] = len(pairs) - len(kept)
            return Cases(kept, name, +counts)
    raise DatasetError(
        f"there are no {split or ''} pairs to evaluate on".replace("  ", " "),
        where=", ".join(s.label for s in datasets.sources),
        fix="give a dataset with chosen and rejected columns, or another --split",
    )


def _to_row_end(pairs: Sequence[Case], limit: int) -> int:
    """The limit, or more to the end of a row of RewardBench 2: the best of fewer responses is easier to find."""
    while 0 < limit < len(pairs) and pairs[limit].row and pairs[limit].row == pairs[limit - 1].row:
        limit += 1
    return limit


def _of_split(datasets: Datasets, split: str, folder: Path) -> tuple[list[Case], Counter[str]]:
    """Pairs of one split and the reasons for which rows were left out; RM-Bench's and RewardBench 2's where there are
    any.
    """
    grids: list[Case] = []
    rows: dict[str, tuple[Row, Prompt]] = {}
    for source in datasets.sources:
        reader = source.reader
        for record in source.records("pairs", split, Counter()):
            further, _ = reader.rest(record, *COMPLETIONS)
            seen = Prompt("", (), reader.answer(record, None), source.label, further)
            rows[source.name(record, split)] = (record.row, seen)
            name = f"{source.label}/{record.row.get('id', record.number)}"
            if record.row.get("chosen_audio") and record.row.get("rejected_audio"):
                grids.append(read_audio_pair(name, reader.prompt(record), seen, record.row, folder))
            elif is_best_of(record.row):
                grids += read_best_of(name, reader.prompt(record), seen, record.row, record.where)
            elif is_grid(record.row):
                grids += read_grid(name, reader.prompt(record), seen, record.row, record.where)
    if grids:
        return grids, Counter()
    return [_case(pair, *rows[pair.id]) for pair in datasets.pairs(split)], Counter(datasets.counts)


def _case(pair: PreferencePair, row: Row, seen: Prompt) -> Case:
    """``seen`` has the source, reference answer and further columns of the row, as a training run's prompts have."""
    subset = row.get("subset", row.get("domain"))
    return Case(
        pair.id,
        Text(pair.prompt, pair.chosen, seen),
        Text(pair.prompt, pair.rejected, seen),
        "" if subset is None else str(subset),
    )


def read_audio_pair(name: str, prompt: tuple[Message, ...], seen: Prompt, row: Row, folder: Path) -> Case:
    """A pair of clips of one prompt; what they say may stand in ``chosen`` and ``rejected``. A file that is not there
    has a missing score."""
    sides = []
    for side in ("chosen", "rejected"):
        path = folder / Path(str(row[f"{side}_audio"])).expanduser()
        text = row.get(side)
        sides.append(Text(prompt, text if isinstance(text, str) else "", seen, (Media("audio", str(path.absolute())),)))
    return Case(name, *sides, subset=str(row.get("subset", row.get("engine", ""))))


def is_grid(row: Row) -> bool:
    """Whether a row has several chosen and rejected texts, as RM-Bench's do."""

    def is_list_of_texts(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)

    return is_list_of_texts(row.get("chosen")) and is_list_of_texts(row.get("rejected"))


def read_grid(name: str, prompt: tuple[Message, ...], seen: Prompt, row: Row, where: str) -> list[Case]:
    """The nine pairs of an RM-Bench row (Liu et al. 2024), each chosen style against each rejected one."""
    chosen, rejected = row["chosen"], row["rejected"]
    if len(chosen) != STYLES or len(rejected) != STYLES or not all(text.strip() for text in (*chosen, *rejected)):
        raise DatasetError(
            "an RM-Bench row needs three chosen and three rejected texts, none of them empty",
            where=where,
            fix="fix or remove that row",
        )
    subset = str(row.get("domain", row.get("subset", "")))
    return [
        Case(f"{name}#{i}{j}", Text(prompt, good, seen), Text(prompt, bad, seen), subset, (i, j))
        for i, good in enumerate(chosen)
        for j, bad in enumerate(rejected)
    ]


def is_best_of(row: Row) -> bool:
    """Whether a row is RewardBench 2's."""
    return "num_correct" in row and isinstance(row.get("chosen"), list) and isinstance(row.get("rejected"), list)


def read_best_of(name: str, prompt: tuple[Message, ...], seen: Prompt, row: Row, where: str) -> list[Case]:
    """Every right response of a row against every wrong one; ``Case.row`` says which belong together.

    Raises:
        DatasetError: the counts are not those of the texts, or a row of Ties is neither ``ref:N`` nor ``tied:N``.
    """
    chosen, rejected, subset = row["chosen"], row["rejected"], str(row.get("subset") or "")
    counts = (row.get("num_correct"), row.get("num_incorrect", len(rejected)))
    if counts != (len(chosen), len(rejected)) or not chosen or not rejected:
        raise DatasetError(
            "a RewardBench 2 row does not hold the responses that it counts",
            where=where,
            why=f"num_correct {counts[0]}, num_incorrect {counts[1]}; {len(chosen)} chosen, {len(rejected)} rejected",
            fix="take the published file, with a prompt in each row",
        )
    kind, _, number = str(row.get("id")).partition(":")
    if subset.lower() == TIES and (kind not in ("ref", "tied") or not number or (kind == "tied") != (len(chosen) > 1)):
        raise DatasetError(
            "a row of Ties is neither ref:N, with one right response, nor tied:N, with several",
            where=where,
            why=f"its id is {row.get('id')!r}, and it has {len(chosen)} chosen",
            fix="take the published file",
        )
    return [
        Case(
            f"{name}#{i}.{j}", Text(prompt, good, seen), Text(prompt, bad, seen), subset, row=f"{where}/{row.get('id')}"
        )
        for i, good in enumerate(chosen)
        for j, bad in enumerate(rejected)
    ]

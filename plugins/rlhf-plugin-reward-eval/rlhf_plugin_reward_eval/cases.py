"""What a reward is tested on: pairs in every form that public sets use, and responses with a gold score.

Pairs come through the core's datasets, so that what a training run drops (identical or empty sides, prompts that
differ) is dropped and counted here too. RM-Bench's rows of 3 x 3 responses are read here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlhf_core.api import DatasetError, Message, PreferencePair, Prompt, Sample
from rlhf_core.sdk import NOT_META, Datasets, RawRow, RowReader, read_rows

STYLES = 3
"""RM-Bench: concise, detailed in plain text, detailed in Markdown."""


class Text(NamedTuple):
    """A response to a conversation.

    Example:
        Text(({"role": "user", "content": "Hi"},), "Hello.")
    """

    prompt: tuple[Message, ...]
    completion: str
    row: Prompt = Prompt("", ())
    """What a verifier needs besides: source, reference answer, further columns."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal conversations with one answer."""
        return (prompt_key(self.prompt), self.completion, self.row.answer)

    @property
    def words(self) -> int:
        """Length of the response."""
        return len(self.completion.split())


def prompt_key(prompt: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Equal for equal conversations."""
    return tuple((m["role"], m["content"]) for m in prompt)


@dataclass(frozen=True, slots=True)
class Case:
    """One pair.

    Example:
        Case("a/1", chosen=Text(prompt, "4"), rejected=Text(prompt, "5"), subset="math")
    """

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


@dataclass(frozen=True, slots=True)
class Response:
    """A response whose worth is known."""

    text: Text
    gold: float


@dataclass(frozen=True)
class Cases:
    """All pairs of an evaluation and what was left out of them."""

    pairs: list[Case]
    split: str
    counts: Counter[str] = field(default_factory=Counter)


def read_cases(datasets: Datasets, split: str | None, limit: int | None) -> Cases:
    """Pairs of a dataset.

    Args:
        datasets: the pairs' dataset.
        split: ``train`` or ``heldout``; None takes the held-out one where there is one, else everything.
        limit: at most so many rows, from the front.

    Raises:
        DatasetError: no pair, or rows that cannot be used.
    """
    for name in (split,) if split else ("heldout", "train"):
        pairs, counts = _of_split(datasets, name)
        if pairs:
            counts["pairs_beyond_limit"] = max(0, len(pairs) - (limit or len(pairs)))
            return Cases(pairs[:limit], name, +counts)
    raise DatasetError(
        f"there are no {split or ''} pairs to evaluate on".replace("  ", " "),
        where=", ".join(s.label for s in datasets.sources),
        fix="give a dataset with chosen and rejected columns, or another --split",
    )


def _of_split(datasets: Datasets, split: str) -> tuple[list[Case], Counter[str]]:
    records = [(source, record) for source in datasets.sources for record in source.records("pairs", split, Counter())]
    grids = [(source, record) for source, record in records if is_grid(record.row)]
    if grids:
        cases = [case for source, record in grids for case in read_grid(source.reader, record, source.label)]
        return cases, Counter()
    rows = {source.name(record, split): (source.reader, record) for source, record in records}
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
    meta, _ = reader.rest(record, (*NOT_META, "completion", "completions", "response"))
    return Prompt("", (), reader.answer(record, None), source, meta)


def is_grid(row: Mapping[str, Any]) -> bool:
    """Whether a row has several chosen and rejected texts, as RM-Bench's do."""
    return all(
        isinstance(row.get(side), list) and row[side] and all(isinstance(x, str) for x in row[side])
        for side in ("chosen", "rejected")
    )


def read_grid(reader: RowReader, record: RawRow, label: str) -> list[Case]:
    """The nine pairs of an RM-Bench row (Liu et al. 2024), each chosen style against each rejected one.

    Raises:
        DatasetError: not three and three texts, or an empty one.
    """
    prompt, sides = reader.prompt(record), [record.row[side] for side in ("chosen", "rejected")]
    if any(len(texts) != STYLES or not all(t.strip() for t in texts) for texts in sides):
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
        for i, good in enumerate(sides[0])
        for j, bad in enumerate(sides[1])
    ]


def read_responses(
    file: str, column: str | None, scale: tuple[float, float] | None, datasets: Datasets | None
) -> list[Response]:
    """Responses with a gold score: rows with ``completion`` or ``completions`` (texts, or objects with ``text``).

    Args:
        file: JSON lines, or the output of ``rlhf generate --json``.
        column: where the gold score stands, in the row or in each completion; None asks the dataset's own gold score.
        scale: the lowest and highest gold score there may be.
        datasets: has the gold score when there is no column.

    Raises:
        DatasetError: no gold score, one that is no number or outside the scale, or all of them equal.
    """
    rows, places = read_rows(file)
    reader = RowReader(file, {}, mapped=False)
    judge = None if column else Gold(datasets, file)
    found: list[Response] = []
    for number, (row, place) in enumerate(zip(rows, places)):
        record = RawRow(row, number, f"{file}, {place}")
        prompt = reader.prompt(record)
        own = row_of(reader, record, str(row.get("source", "")))
        for text, values in _completions(reader, record):
            one = Text(prompt, text, own)
            gold = judge(one, record.where) if judge else number_of(values, str(column), scale, record.where)
            found.append(Response(one, gold))
    if len({r.gold for r in found}) < 2:
        raise DatasetError(
            f"all {len(found)} gold scores of '{file}' are {found[0].gold:g}"
            if found
            else f"'{file}' has no completion",
            why="nothing can be compared with a constant",
            fix="give responses of different worth, or another --gold column",
        )
    return found


def with_answers(responses: Sequence[Response], pairs: Sequence[Case]) -> list[Response]:
    """Responses without a reference answer of their own get the row of a pair with the same conversation."""
    rows = {prompt_key(c.chosen.prompt): c.chosen.row for c in pairs}
    found: list[Response] = []
    for response in responses:
        text, own = response.text, response.text.row
        row = rows.get(prompt_key(text.prompt), own)
        if own.answer is None:
            own = replace(own, answer=row.answer, source=own.source or row.source, meta={**row.meta, **own.meta})
        found.append(replace(response, text=text._replace(row=own)))
    return found


def _completions(reader: RowReader, record: RawRow) -> list[tuple[str, Mapping[str, Any]]]:
    """(text, where its gold score stands) of each completion of a row."""
    many = record.row.get("completions")
    if many is None:
        return [(str(reader.need(record, "completion", "response")), record.row)]
    if not isinstance(many, list):
        raise DatasetError("completions is not a list", where=record.where, fix="give a list of texts or objects")
    golds = [
        {k: v[i] for k, v in record.row.items() if isinstance(v, list) and len(v) == len(many)}
        for i in range(len(many))
    ]
    return [
        (one, golds[i]) if isinstance(one, str) else (str(one.get("text", "")), {**golds[i], **one})
        for i, one in enumerate(many)
    ]


def number_of(row: Mapping[str, Any], column: str, scale: tuple[float, float] | None, where: str) -> float:
    """A finite number of a row, within the scale.

    Raises:
        DatasetError: it is none, or outside.
    """
    value = row.get(column)
    if value is None:
        raise DatasetError(
            f"there is no gold score '{column}'",
            where=where,
            why=f"there is: {', '.join(map(str, row))}",
            fix="name the column with --gold",
        )
    try:
        gold = float(value)
    except (TypeError, ValueError):
        gold = math.nan
    if not math.isfinite(gold):
        raise DatasetError(f"gold score {value!r} is not a finite number", where=where, fix="fix or remove that row")
    if scale and not scale[0] <= gold <= scale[1]:
        raise DatasetError(
            f"gold score {gold:g} lies outside the scale {scale[0]:g} to {scale[1]:g}",
            where=where,
            fix="fix the row, or --gold-scale",
        )
    return gold


class Gold:
    """A dataset's own gold score, found by the conversation.

    Args:
        datasets: whose sources may have one.
        what: names the file in errors.

    Raises:
        DatasetError: there is none.
    """

    def __init__(self, datasets: Datasets | None, what: str) -> None:
        self.datasets = datasets
        self.prompts = gold_prompts(datasets) if datasets is not None else {}
        if not self.prompts:
            raise DatasetError(
                f"there is no gold score for '{what}'",
                why="the dataset has none of its own",
                fix="name its column with --gold COLUMN, or --pairs pocket/assistant",
            )

    def __call__(self, text: Text, where: str) -> float:
        """The gold score of one response.

        Raises:
            DatasetError: its conversation is not in the dataset.
        """
        prompt = self.prompts.get(prompt_key(text.prompt))
        if prompt is None or self.datasets is None:
            raise DatasetError(
                "the dataset has no such prompt, so no gold score",
                where=where,
                why=f"the prompt is {text.prompt[-1]['content'][:60]!r}",
                fix="name a column with --gold, or remove that row",
            )
        return float((self.datasets.gold(Sample(prompt, text.completion)) or {})["value"])


def gold_prompts(datasets: Datasets) -> dict[tuple[tuple[str, str], ...], Prompt]:
    """Conversation -> the prompt by which its dataset knows the gold score; empty where no source has one."""
    if not any(hasattr(s.component, "gold") for s in datasets.sources):
        return {}
    return {
        prompt_key(p.messages): p
        for split in ("heldout", "train")
        for p in datasets.prompts(split)
        if datasets.has_gold(p)
    }

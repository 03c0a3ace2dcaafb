"""What an algorithm would read of a data set, with the reader that training uses; every broken row is collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from rlhf_core.config import BuildContext
from rlhf_core.data import (
    DatasetError,
    Datasets,
    Message,
    Prompt,
    Tool,
    message_text,
)
from rlhf_core.data.conversations import Reply, replies
from rlhf_core.data.files import CheckedRows, Packed, collected_broken_rows, refuse_row

KIND_OF_FEED = {"labels": "demonstrations", "pairs": "pairs", "unpaired": "unpaired"}
"""What a trainer's loss consumes -> the rows that it reads."""


@cache
def with_name(names: frozenset[str], name: str) -> frozenset[str]:
    """A set of names with one more; one object, however many rows have it."""
    return names | {name}


class RecordedRow(dict[str, Any]):
    """A row that notes the names of the columns whose values are asked for, in ``used`` at its number."""

    __slots__ = ("_number", "_used")

    def __init__(self, row: Mapping[str, Any], used: list[frozenset[str]], number: int) -> None:
        super().__init__(row)
        self._used, self._number = used, number

    @property
    def used(self) -> frozenset[str]:
        return self._used[self._number]

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if dict.__contains__(self, key) else default

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is not None and key not in (used := self._used[self._number]):
            self._used[self._number] = with_name(used, key)
        return value


class RecordedRows(CheckedRows):
    """Rows as :class:`RecordedRow`, made whenever one is asked for."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.numbers, self.used = range(len(rows)), [frozenset[str]()] * len(rows)
        self.row = partial(Packed.make, rows) if isinstance(rows, CheckedRows) else rows.__getitem__

    def make(self, number: int) -> RecordedRow:
        return RecordedRow(self.row(number), self.used, number)


class Item(NamedTuple):
    """One thing to train on, or held out."""

    where: str
    prompt: tuple[Message, ...]
    completions: tuple[str, ...]
    turns: tuple[Message | None, ...] = ()
    """Of each completion that is more than a text, the turn; () where none is."""
    tools: tuple[Tool, ...] = ()

    @property
    def replies(self) -> tuple[Reply, ...]:
        return tuple(zip(self.completions, self.turns or (None,) * len(self.completions)))

    @property
    def question(self) -> str:
        return "\n".join(message_text(m) for m in self.prompt if m["role"] != "system")

    @property
    def text(self) -> str:
        return "\n".join([self.question, *self.completions])


class Reading(NamedTuple):
    train: Packed[Item]
    heldout: Packed[Item]
    broken: list[DatasetError]
    kind: str


def kind_of(trainer: Any) -> str:
    """The rows that a trainer learns from (``prompts``, ``pairs``, ...); its ``reads``, or prompts if it samples."""
    if (reads := getattr(trainer, "reads", None)) is not None:
        return str(reads)
    if hasattr(trainer, "group_size"):
        return "prompts"
    return KIND_OF_FEED.get(str(getattr(trainer, "feeds", None)), "prompts")


def read_items(datasets: Datasets, ctx: BuildContext) -> Reading:
    """Read both splits as the trainer would; prompts go to the ``check_prompt`` of the reward that judges them, which
    training asks too, and to the trainer's ``check_row(prompt, where)``, which returns what is learned or None."""
    kind, items = kind_of(ctx.config.trainer), {"train": Packed[Item](), "heldout": Packed[Item]()}
    with collected_broken_rows() as broken:
        for split, of_split in items.items():
            try:
                rows = getattr(datasets, kind)(split)
            except DatasetError:
                if not broken:
                    raise
                break  # nothing is left because of the broken rows
            placed = zip(rows, datasets.places("rows" if kind == "prompts" else kind, split))
            for item in _judgeable(placed, datasets, ctx) if kind == "prompts" else _answered(placed):
                of_split.append(item)
    return Reading(**items, broken=broken, kind=kind)


def _answered(rows: Iterable[tuple[Any, str]]) -> Iterator[Item]:
    for row, where in rows:
        texts, turns = zip(*replies(row))
        turns = turns if any(turns) else ()
        yield Item(where, row.prompt, texts, turns, row.tools)


def _judgeable(rows: Iterable[tuple[Prompt, str]], datasets: Datasets, ctx: BuildContext) -> Iterator[Item]:
    """The rows that the trainer's own reader and the reward accept."""
    check_row = getattr(ctx.config.trainer, "check_row", None)
    source_rewards = datasets.own_rewards()
    for row, where in rows:
        reward = source_rewards.get(row.source, ctx.config.reward)
        check_prompt = getattr(reward, "check_prompt", None)
        try:
            completion = check_row(row, where) if check_row is not None else None
            if check_prompt is not None and (why := check_prompt(row, sampled=True)) is not None:
                name = getattr(reward, "name", "")
                raise DatasetError(f"reward '{name}' can judge no completion of it", where=where, why=why)
        except DatasetError as error:
            refuse_row(error)
        else:
            completions = () if completion is None else (completion,)
            yield Item(where, row.messages, completions, (), row.tools)

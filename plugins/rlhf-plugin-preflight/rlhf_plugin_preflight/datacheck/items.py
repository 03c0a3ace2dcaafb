"""What an algorithm would read of a data set, with the reader that training uses; every broken row is collected."""

from __future__ import annotations

from collections.abc import Sequence
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
from rlhf_core.data.files import collected_broken_rows, refuse_row

KIND_OF_FEED = {"labels": "demonstrations", "pairs": "pairs", "unpaired": "unpaired"}
"""What a trainer's loss consumes -> the rows that it reads."""


class Item(NamedTuple):
    """One thing to train on, or held out."""

    where: str
    split: str
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
    items: list[Item]
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
    kind = kind_of(ctx.config.trainer)
    items: list[Item] = []
    with collected_broken_rows() as broken:
        for split in ("train", "heldout"):
            try:
                rows = getattr(datasets, kind)(split)
            except DatasetError:
                if not broken:
                    raise
                break  # nothing is left because of the broken rows
            if kind == "prompts":
                items += _judgeable(rows, split, datasets, ctx)
            else:
                for row in rows:
                    texts, turns = zip(*replies(row))
                    turns = turns if any(turns) else ()
                    items.append(Item(datasets.where(row.id), split, row.prompt, texts, turns, row.tools))
    return Reading(items, broken, kind)


def _judgeable(rows: Sequence[Prompt], split: str, datasets: Datasets, ctx: BuildContext) -> list[Item]:
    """The rows that the trainer's own reader and the reward accept."""
    check_row = getattr(ctx.config.trainer, "check_row", None)
    source_rewards = datasets.own_rewards()
    items: list[Item] = []
    for row in rows:
        reward, where = source_rewards.get(row.source, ctx.config.reward), datasets.where(row.id)
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
            items.append(Item(where, split, row.messages, completions, (), row.tools))
    return items

"""The prompts of a suite as the model is fed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import Message, Prompt, message_text

if TYPE_CHECKING:
    from rlhf_core.data import Datasets
    from rlhf_core.models import Formatter
    from rlhf_eval.suites import SuiteConfig


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a suite."""

    prompt: Prompt
    messages: tuple[Message, ...]
    """What the model is fed: worked examples and template included."""


class Shot(NamedTuple):
    """A worked example."""

    id: str
    question: str
    answer: str


def section(suite: SuiteConfig, path: str | None) -> dict[str, Any]:
    """The ``dataset`` section of a suite's rows; nothing is set aside or dropped for its length here."""
    source = suite.rows_of(path)
    return {
        "heldout_fraction": 0.0,
        "max_dropped_fraction": 0.0,
        **({"limit": suite.limit} if suite.limit else {}),
        **_filtered(source, suite.where),
    }


def _filtered(source: dict[str, Any], where: str | None) -> dict[str, Any]:
    """A data set section whose rows are those for which ``where`` holds, in each of its sources."""
    if not where:
        return source
    if "sources" in source:
        return {**source, "sources": [{**one, "where": where} for one in source["sources"]]}
    return {**source, "where": where}


def rows(suite: SuiteConfig, datasets: Datasets) -> Sequence[Prompt]:
    if suite.split != "train" and (heldout := datasets.prompts("heldout")):
        return heldout
    if suite.split == "heldout":
        raise ConfigError(f"suite '{suite.name}': the data set has no held-out rows", fix="--set split=auto")
    return datasets.prompts("train")


def worked_examples(suite: SuiteConfig, ctx: BuildContext, prompts: Sequence[Prompt]) -> list[Shot]:
    """The first ``shots`` rows of ``shots_path`` that are not among the prompts."""
    if not suite.shots:
        return []
    from rlhf_core.cli import context_of

    dataset = {**section(suite, suite.shots_path), "limit": suite.shots}
    rows = context_of(ctx.registry, dataset=dataset).datasets.demonstrations("train")
    examples = [Shot(row.id, message_text(row.prompt[-1]), row.completion.strip()) for row in rows]
    if len(examples) < suite.shots:
        raise ConfigError(
            f"'{suite.shots_path}' has {len(examples)} rows, but {suite.shots} shots were asked for",
            fix="fewer --shots, or another file",
        )
    questions = {p.text for p in prompts}
    leaked = [shot.id for shot in examples if shot.question in questions]
    if leaked:
        raise ConfigError(
            f"worked example '{leaked[0]}' is also a question of the suite",
            where=suite.shots_path or "",
            why="the model would be shown its answer",
            fix="take them from the training split",
        )
    return examples


def items(suite: SuiteConfig, prompts: Sequence[Prompt], shots: Sequence[Shot], chat: bool) -> list[Item]:
    """Every prompt with its worked examples, in turns of a conversation or as one text."""
    template = suite.template or "{prompt}"

    def ask(text: str) -> str:
        return template.replace("{prompt}", text)

    turns: list[Message] = []
    for shot in shots:
        turns += [
            {"role": "user", "content": ask(shot.question)},
            {"role": "assistant", "content": shot.answer},
        ]
    text = "".join(f"{ask(shot.question)} {shot.answer}\n\n" for shot in shots)
    all_items: list[Item] = []
    for prompt in prompts:
        before, last = prompt.messages[:-1], prompt.messages[-1]
        question = {**last, "content": ask(message_text(last))}
        if chat:
            system = [m for m in before if m["role"] == "system"]
            other_turns = [m for m in before if m["role"] != "system"]
            all_items.append(Item(prompt, (*system, *turns, *other_turns, question)))
        else:
            all_items.append(Item(prompt, (*before, {**question, "content": text + question["content"]})))
    return all_items


def encode(all_items: Sequence[Item], formatter: Formatter, context: int) -> list[tuple[int, ...]]:
    ids = [formatter.encode(item.messages, item.prompt.tools) for item in all_items]
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    if len(ids[longest]) >= context:
        over = sum(len(row) >= context for row in ids)
        raise ConfigError(
            f"{over} of {len(ids)} prompts fill the model's context of {context} tokens",
            where=f"longest: {all_items[longest].prompt.id} ({len(ids[longest])} tokens)",
            fix="fewer --shots, a shorter template, or a model with a longer context",
        )
    return ids

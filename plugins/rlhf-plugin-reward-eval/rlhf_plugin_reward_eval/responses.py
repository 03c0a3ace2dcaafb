"""Responses with a gold score: from a file, or the dataset's own gold score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core.data import DatasetError, Datasets, Prompt, message_text, read_rows
from rlhf_core.rewards import Sample
from rlhf_plugin_reward_eval.cases import COMPLETIONS, Case, Text, prompt_key


@dataclass(frozen=True, slots=True)
class Response:
    text: Text
    gold: float


def read_responses(
    file: str, column: str | None, scale: tuple[float, float] | None, datasets: Datasets | None
) -> list[Response]:
    """Responses with a gold score: rows with ``completion`` or ``completions`` (texts, or objects with ``text``). A
    ``column`` of None takes the dataset's own gold score."""
    reader, records = read_rows(file).records(file)
    dataset_gold = None if column else Gold(datasets, file)
    responses: list[Response] = []
    for record in records:
        row, prompt = record.row, reader.prompt(record)
        further, _ = reader.rest(record, *COMPLETIONS)
        seen = Prompt("", (), reader.answer(record, None), str(row.get("source", "")), further)
        several = row.get("completions") is not None
        one = () if several else [(str(reader.need(record, "completion", "response")), row)]
        for completion, values in one or _completions(row, record.where):
            text = Text(prompt, completion, seen)
            if dataset_gold is not None:
                gold = dataset_gold(text, record.where)
            else:
                gold = number_of(values, str(column), scale, record.where)
            responses.append(Response(text, gold))
    if not responses or len({r.gold for r in responses}) < 2:
        raise DatasetError(
            f"all {len(responses)} gold scores of '{file}' are {responses[0].gold:g}"
            if responses
            else f"'{file}' has no completion",
            why="nothing can be compared with a constant",
            fix="give responses of different worth, or another --gold column",
        )
    return responses


def with_answers(responses: Sequence[Response], pairs: Sequence[Case]) -> list[Response]:
    """Responses without a reference answer get the row of a pair with the same conversation."""
    rows = {prompt_key(c.chosen.prompt): c.chosen.row for c in pairs}
    return [replace(r, text=r.text._replace(row=_answered(r.text, rows))) for r in responses]


def _answered(text: Text, rows: Mapping[tuple[tuple[str, str], ...], Prompt]) -> Prompt:
    """The row of a response, with what the pair's row adds where it has no answer; its own columns come first."""
    row = text.row
    if row.answer is not None:
        return row
    other = rows.get(prompt_key(text.prompt), row)
    return replace(row, answer=other.answer, source=row.source or other.source, meta={**other.meta, **row.meta})


def _completions(row: Mapping[str, Any], where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(text, where its gold score stands) of each completion of a row that has several."""
    completions = row["completions"]
    if not isinstance(completions, list):
        raise DatasetError("completions is not a list", where=where, fix="give a list of texts or objects")
    parallel = {k: v for k, v in row.items() if isinstance(v, list) and len(v) == len(completions)}
    result: list[tuple[str, Mapping[str, Any]]] = []
    for i, completion in enumerate(completions):
        values = {k: column[i] for k, column in parallel.items()}
        if isinstance(completion, str):
            result.append((completion, values))
        else:
            result.append((str(completion.get("text", "")), {**values, **completion}))
    return result


def number_of(row: Mapping[str, Any], column: str, scale: tuple[float, float] | None, where: str) -> float:
    """A finite number of a row, within the scale."""
    value = row.get(column)
    if value is None:
        raise DatasetError(
            f"there is no gold score '{column}'",
            where=where,
            why=f"there is: {', '.join(map(str, row))}",
            fix="name the column with --gold",
        )
    try:
        gold = math.nan if isinstance(value, bool) else float(value)
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
    """A dataset's own gold score, found by the conversation."""

    def __init__(self, datasets: Datasets | None, file: str) -> None:
        self.datasets = datasets
        self.prompts = gold_prompts(datasets) if datasets is not None else {}
        if not self.prompts:
            raise DatasetError(
                f"there is no gold score for '{file}'",
                why="the dataset has none of its own",
                fix="name its column with --gold COLUMN, or --pairs pocket/assistant",
            )

    def __call__(self, text: Text, where: str) -> float:
        prompt = self.prompts.get(prompt_key(text.prompt))
        if prompt is None or self.datasets is None:
            raise DatasetError(
                "the dataset has no such prompt, so no gold score",
                where=where,
                why=f"the prompt is {message_text(text.prompt[-1])[:60]!r}",
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


def gold_of_texts(datasets: Datasets, file: str) -> Callable[[Text], float] | None:
    """Gold score of a response by the dataset itself, None where it has none; ``file`` is named in errors."""
    if not gold_prompts(datasets):
        return None
    gold = Gold(datasets, file)
    return lambda text: gold(text, file)

"""Responses with a gold score: from a file, or the dataset's own gold score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core.data import DatasetError, Datasets, Prompt, RawRow, RowReader, message_text, read_rows
from rlhf_core.rewards import Sample
from rlhf_plugin_reward_eval.cases import Case, Text, prompt_key, row_of


@dataclass(frozen=True, slots=True)
class Response:
    text: Text
    gold: float


def read_responses(
    file: str, column: str | None, scale: tuple[float, float] | None, datasets: Datasets | None
) -> list[Response]:
    """Responses with a gold score, from ``completion`` or ``completions``; ``column`` None takes the dataset's gold."""
    rows, sources = read_rows(file)
    reader = RowReader(file, {}, mapped=False)
    dataset_gold = None if column else Gold(datasets, file)
    responses: list[Response] = []
    for number, (row, source) in enumerate(zip(rows, sources)):
        record = RawRow(row, number, f"{file}, {source}")
        prompt = reader.prompt(record)
        columns = row_of(reader, record, str(row.get("source", "")))
        for completion, values in _completions(reader, record):
            text = Text(prompt, completion, columns)
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


def _completions(reader: RowReader, record: RawRow) -> list[tuple[str, Mapping[str, Any]]]:
    """(text, where its gold score stands) of each completion of a row."""
    completions = record.row.get("completions")
    if completions is None:
        return [(str(reader.need(record, "completion", "response")), record.row)]
    if not isinstance(completions, list):
        raise DatasetError("completions is not a list", where=record.where, fix="give a list of texts or objects")
    parallel = {k: v for k, v in record.row.items() if isinstance(v, list) and len(v) == len(completions)}
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

"""Rows with grades, tokenized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.data import DatasetError, Datasets, Prompt
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_rubric.rubric import BadGrades, Rubric, on_scale


@dataclass(frozen=True, slots=True)
class GradedItem:
    """One response and its normalised grades, criterion by criterion."""

    name: str
    ids: tuple[int, ...]
    grades_K: tuple[float, ...]

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Graded:
    """One row: a response and its normalised grades."""

    prompt: Prompt
    completion: str
    grades_K: tuple[float, ...]


def read_rows(datasets: Datasets, split: str, rubric: Rubric, counts: Counter[str]) -> list[Graded]:
    """Rows of a split; those without a score are dropped and counted."""
    graded: list[Graded] = []
    for prompt in datasets.prompts(split):
        row = read_row(prompt, rubric, datasets.where(prompt.id))
        if row is None:
            counts["grades_missing"] += 1
        else:
            graded.append(row)
    return graded


def read_row(prompt: Prompt, rubric: Rubric, where: str) -> Graded | None:
    """One row, None where its score is missing; errors as in :func:`read_rows`."""
    if prompt.meta.get("status", "ok") != "ok":
        return None
    completion = prompt.meta.get("completion", prompt.meta.get("response"))
    if not isinstance(completion, str):
        raise DatasetError(
            "a row has no response to learn the grades of",
            where=where,
            fix="each row needs prompt, completion, and grades (or the parts of a scored row)",
        )
    return Graded(prompt, completion, read_grades(prompt, rubric, where))


def encode_rows(rows: Sequence[Graded], encoder: Encoder, counts: Counter[str]) -> list[GradedItem]:
    items: list[GradedItem] = []
    for row in rows:
        question, answer = encoder.sides(row.prompt.messages, row.completion, row.prompt.tools)
        if len(question) + len(answer) > encoder.max_length:
            counts["graded_cut"] += 1
        items.append(GradedItem(row.prompt.id, encoder.cut(question, answer), row.grades_K))
    return items


def read_grades(prompt: Prompt, rubric: Rubric, where: str) -> tuple[float, ...]:
    """Normalised grades of one row: from ``grades``, on their scales, or from ``parts``, from 0 to 1."""
    grades, parts = prompt.meta.get("grades"), prompt.meta.get("parts")
    try:
        if grades is None and isinstance(parts, dict) and set(rubric.names) <= set(parts):
            return tuple(on_scale(name, parts[name], 0, 1) for name in rubric.names)
        values = rubric.read(grades)
    except BadGrades as error:
        raise DatasetError(
            f"grades do not fit the rubric: {error}",
            where=where,
            fix="fix the row, or name the rubric that it was graded by: trainer.rubric",
        ) from error
    return tuple(values[name] for name in rubric.names)

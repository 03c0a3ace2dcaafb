"""Rows of a dataset as solutions with labelled steps; what does not fit is named with file and line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_core.data import DatasetError, Message, Prompt, Tool
from rlhf_plugin_prm.steps import Split, Step, joined, split_steps

Target = Literal["steps", "outcome"]


@dataclass(frozen=True, slots=True)
class Solution:
    id: str
    prompt: tuple[Message, ...]
    text: str
    steps: tuple[Step, ...]
    labels: tuple[bool, ...]
    """Whether each step is right; a step that builds on a wrong one is wrong."""
    outcome: bool
    """Whether the final answer is right."""
    tools: tuple[Tool, ...] = ()
    """What the prompt offered."""

    @property
    def first_error(self) -> int:
        return next((n for n, right in enumerate(self.labels) if not right), -1)


def read_solutions(prompts: Sequence[Prompt], split: Split, where: Callable[[str], str]) -> list[Solution]:
    """Read the columns ``steps`` or ``completion``, ``labels`` or ``label``, and ``outcome``."""
    return [_solution(p, split, where(p.id)) for p in prompts]


def _solution(prompt: Prompt, split: Split, where: str) -> Solution:
    meta = prompt.meta
    text, steps = _steps(meta, split, where)
    labels = _labels(meta, len(steps), split, where)
    outcome = meta.get("outcome")
    right = labels[-1] if outcome is None else _truth(outcome, "outcome", where)
    return Solution(prompt.id, prompt.messages, text, tuple(steps), labels, right, prompt.tools)


def _steps(meta: Mapping[str, Any], split: Split, where: str) -> tuple[str, list[Step]]:
    column = meta.get("steps")
    if column is None:
        text = meta.get("completion", meta.get("response"))
        if not isinstance(text, str):
            raise DatasetError(
                "a row has neither steps nor a completion",
                where=where,
                why=f"its further columns: {', '.join(sorted(meta)) or 'none'}",
                fix="give a list of texts as steps; map another column: dataset.columns={steps: NAME}",
            )
        steps = split_steps(text, split)
    elif isinstance(column, (list, tuple)) and all(isinstance(s, str) for s in column):
        text, steps = joined(column, split)
        if empty := [n for n, s in enumerate(steps) if s.start >= s.end]:
            raise DatasetError(
                f"step {empty[0] + 1} of {len(steps)} is empty", where=where, fix="remove it, and its label"
            )
    else:
        raise DatasetError(
            f"steps are not a list of texts: {str(column)[:60]!r}",
            where=where,
            fix='write "steps": ["first step", "second step"]',
        )
    if not steps:
        raise DatasetError("the response is empty: it has no step to label", where=where, fix="remove or fill that row")
    return text, steps


def _labels(meta: Mapping[str, Any], count: int, split: Split, where: str) -> tuple[bool, ...]:
    labels, first_wrong = meta.get("labels"), meta.get("label")
    if isinstance(labels, (list, tuple)):
        if len(labels) != count:
            why = "" if meta.get("steps") is not None else f"its completion was cut by split={split}"
            raise DatasetError(
                f"{count} steps but {len(labels)} labels",
                where=where,
                why=why,
                fix="give one label per step; another way to cut is trainer.split=newline | blank_line "
                "| step_n | sentence",
            )
        return tuple(_truth(label, "labels", where) for label in labels)
    if isinstance(first_wrong, str) and first_wrong.removeprefix("-").isdecimal():
        first_wrong = int(first_wrong)
    if isinstance(first_wrong, int) and not isinstance(first_wrong, bool):
        if not -1 <= first_wrong < count:
            raise DatasetError(
                f"label {first_wrong} is not a step of {count}",
                where=where,
                fix="give the index of the first wrong step, from 0, or -1 if all are right",
            )
        return tuple(first_wrong == -1 or n < first_wrong for n in range(count))
    raise DatasetError(
        "a row has no step labels",
        where=where,
        why=f"its further columns: {', '.join(sorted(meta))}",
        fix='give "labels": [true, false, ...], or "label": index of the first wrong step or -1',
    )


def _truth(value: Any, column: str, where: str) -> bool:
    text = str(value).lower()
    if text in ("true", "1", "1.0", "false", "0", "0.0"):  # a table's cells are texts
        return text in ("true", "1", "1.0")
    raise DatasetError(
        f"{column}: {value!r} is neither true nor false",
        where=where,
        fix="write true or 1 for right, false or 0 for wrong",
    )


def check_both_classes(solutions: Sequence[Solution], target: Target) -> None:
    """Refuse data of one class: any constant fits it."""
    counts = Counter(label for s in solutions for label in (s.labels if target == "steps" else (s.outcome,)))
    if len(counts) == 1:
        ((only, count),) = counts.items()
        subject = "labelled steps are" if target == "steps" else "outcomes are"
        raise DatasetError(
            f"all {count} {subject} {'right' if only else 'wrong'}",
            why="from one class nothing can be learned",
            fix="add solutions of the other kind; rlhf data perturb makes wrong ones from right ones",
        )

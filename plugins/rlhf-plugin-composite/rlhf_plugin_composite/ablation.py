"""What other weights would make of responses that are already scored. Nothing is trained and no model is run.

Suffixes: ``_N`` responses, ``_K`` components, ``_W`` weightings.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.api import ConfigError, DatasetError
from rlhf_core.functional import spearman

Floats = npt.NDArray[np.float64]
MOST = 2000
"""Weightings of one call."""


@dataclass(frozen=True)
class Scored:
    """Responses with every component's score.

    Example:
        Scored(["taste", "rules"], np.zeros((4, 2)), ["a", "a", "b", "b"], ["x"] * 4, np.arange(4.0), left_out=1)
    """

    names: list[str]
    values_NK: Floats
    prompts: list[str]
    """What each response answers; equal for responses that compete."""
    texts: list[str]
    label_N: Floats | None = None
    left_out: int = 0
    """Rows without a score of some component."""


@dataclass(frozen=True)
class Weighing:
    """What one weighting does."""

    weights: Mapping[str, float]
    mean: float
    std: float
    """Over all responses."""
    spearman: float | None
    """Rank correlation with the label, ties averaged; None without a label or where the value is constant."""
    agreement: float | None
    """Share of pairs of one prompt with different labels that are ranked as the labels rank them; ties are half."""
    changed: float | None
    """Share of prompts whose best response is another than under the first weighting. None if no prompt has two."""
    chosen_label: float | None
    """Mean label of the best responses."""
    chosen_words: float
    """Mean number of words of the best responses."""
    chosen_hollow: float
    """Share of the best responses with a hollow affirmation."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Mean component scores of the best responses."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in vars(self).items()}


def read_scored(rows: Sequence[Mapping[str, Any]], names: Sequence[str], label: str | None, file: str) -> Scored:
    """Components and labels of rows as ``rlhf reward score --output`` writes them, or with a ``scores`` mapping.

    Args:
        rows: each with a prompt, a completion, and ``parts`` or ``scores``.
        names: components to use; none takes all.
        label: column with the gold score or label; it may be true or false. None uses none.
        file: for messages.

    Raises:
        DatasetError: no component, one that is nowhere, or a label that is missing, no number, or always the same.
    """
    scores = [components(row) for row in rows]
    known = list(dict.fromkeys(name for s in scores for name in s))
    if not known:
        raise DatasetError(
            f"'{file}' has no scored components",
            why="no row has parts or scores",
            fix="rlhf reward score --reward composite ... --output FILE writes them",
        )
    if unknown := [n for n in names if n not in known]:
        raise DatasetError(
            f"'{file}' has no component '{unknown[0]}'", why=f"it has {', '.join(known)}", fix="check --parts"
        )
    used = list(names) or known
    keep = [i for i, s in enumerate(scores) if all(math.isfinite(s.get(n, math.nan)) for n in used)]
    if not keep:
        raise DatasetError(
            f"no row of '{file}' has a score of every component",
            why=f"components: {', '.join(used)}",
            fix="choose fewer with --parts, or score again",
        )
    labels = None if label is None else label_column([rows[i] for i in keep], label, file)
    values = np.array([[scores[i][n] for n in used] for i in keep], float)
    texts = [str(rows[i].get("completion", rows[i].get("response", ""))) for i in keep]
    return Scored(used, values, [prompt_of(rows[i]) for i in keep], texts, labels, len(rows) - len(keep))


def components(row: Mapping[str, Any]) -> dict[str, float]:
    """Component -> score. Of a composite's parts the normalised ones, under the part's name."""
    given = row.get("scores")
    found = {**(given if isinstance(given, Mapping) else {}), **(row.get("parts") or {})}
    numbers = {str(k): float(v) for k, v in found.items() if isinstance(v, (int, float))}
    normalised = {k.removesuffix("/normalised"): v for k, v in numbers.items() if k.endswith("/normalised")}
    return normalised or numbers


def label_column(rows: Sequence[Mapping[str, Any]], label: str, file: str) -> Floats:
    """The labels as numbers.

    Raises:
        DatasetError: one is missing or no number, or all are the same.
    """
    for row in rows:
        if not isinstance(row.get(label), (int, float)) or not math.isfinite(row[label]):
            raise DatasetError(
                f"a row of '{file}' has no number in column '{label}'",
                why=f"it has {row.get(label)!r}",
                fix="give every row a number, true or false, or check --label",
            )
    values = np.array([float(row[label]) for row in rows])
    if values.min() == values.max():
        raise DatasetError(
            f"column '{label}' of '{file}' is the same in all {len(rows)} rows",
            why="a rank correlation needs responses of different quality",
            fix="add some, or drop --label",
        )
    return values


def prompt_of(row: Mapping[str, Any]) -> str:
    """What tells prompts apart: the conversation, whatever its column is called."""
    return repr(next((row[c] for c in ("prompt", "messages", "question") if c in row), row.get("id")))


def rescale(scored: Scored, how: Mapping[str, str]) -> Scored:
    """Normalise components over these responses: ``none``, ``sigmoid`` or ``zscore``.

    Raises:
        ConfigError: no such component or way.
        DatasetError: a z-score of what is always the same.
    """
    values = scored.values_NK.copy()
    for name, way in how.items():
        if name not in scored.names or way not in ("none", "sigmoid", "zscore"):
            raise ConfigError(
                f"--normalise {name}={way} cannot be done",
                why=f"components: {', '.join(scored.names)}; ways: none, sigmoid, zscore",
            )
        column = values[:, scored.names.index(name)]
        if way == "sigmoid":
            column[:] = 0.5 * (1 + np.tanh(column / 2))
        elif way == "zscore":
            if column.std() < 1e-12:
                raise DatasetError(
                    f"component '{name}' is the same in all responses",
                    why="a z-score divides by its std",
                    fix="leave it out with --parts",
                )
            column[:] = (column - column.mean()) / column.std()
    return Scored(scored.names, values, scored.prompts, scored.texts, scored.label_N, scored.left_out)


def grid(names: Sequence[str], steps: int) -> list[dict[str, float]]:
    """Every weighting with weights that are multiples of 1/steps and sum to 1; each component alone comes first.

    Raises:
        ConfigError: there are more than :data:`MOST`.
    """
    count = math.comb(steps + len(names) - 1, len(names) - 1)
    if count > MOST:
        raise ConfigError(
            f"a grid of {steps} steps over {len(names)} components has {count} weightings",
            why=f"at most {MOST} are measured at once",
            fix="lower --steps, choose fewer --parts, or name weightings with --weights",
        )
    rows = sorted(compositions(steps, len(names)), key=lambda c: (max(c) != steps, [-x for x in c]))
    return [{n: x / steps for n, x in zip(names, c)} for c in rows]


def compositions(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``total`` as a sum of ``count`` whole numbers from 0 on, order counting."""
    if count == 1:
        yield (total,)
        return
    for first in range(total + 1):
        yield from ((first, *rest) for rest in compositions(total - first, count - 1))


def weigh(scored: Scored, weightings: Sequence[Mapping[str, float]], hollow: re.Pattern[str]) -> list[Weighing]:
    """Measure every weighting; the first is what the others' choices are compared with."""
    groups = by_prompt(scored.prompts)
    weights_WK = np.array([[w.get(n, 0.0) for n in scored.names] for w in weightings])
    values_WN = weights_WK @ scored.values_NK.T
    baseline = [best(values_WN[0], g) for g in groups]
    rivals = same_prompt_pairs(groups, scored.label_N)
    return [_weighing(scored, dict(w), v, groups, baseline, rivals, hollow) for w, v in zip(weightings, values_WN)]


def _weighing(
    scored: Scored,
    weights: dict[str, float],
    value_N: Floats,
    groups: Sequence[Sequence[int]],
    baseline: Sequence[int],
    rivals: npt.NDArray[np.intp],
    hollow: re.Pattern[str],
) -> Weighing:
    chosen = [best(value_N, g) for g in groups]
    contested = [i for i, g in enumerate(groups) if len(g) > 1]
    changed = float(np.mean([chosen[i] != baseline[i] for i in contested])) if contested else None
    labels = scored.label_N
    order = math.nan if labels is None else spearman(np.round(value_N, 12), labels)  # sums that differ by rounding tie
    return Weighing(
        weights,
        float(value_N.mean()),
        float(value_N.std()),
        None if math.isnan(order) else order,
        agreement(value_N, rivals),
        changed,
        None if labels is None else float(labels[chosen].mean()),
        float(np.mean([len(scored.texts[i].split()) for i in chosen])),
        float(np.mean([hollow.search(scored.texts[i]) is not None for i in chosen])),
        {n: float(v) for n, v in zip(scored.names, scored.values_NK[chosen].mean(0))},
    )


def by_prompt(prompts: Sequence[str]) -> list[list[int]]:
    """Indices of the responses of each prompt, in the order of the file."""
    groups: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(i)
    return list(groups.values())


def best(value_N: Floats, group: Sequence[int]) -> int:
    """The response with the highest value; of equals, up to rounding, the first."""
    top = max(value_N[i] for i in group)
    return next(i for i in group if value_N[i] >= top - 1e-12)


def same_prompt_pairs(groups: Sequence[Sequence[int]], label_N: Floats | None) -> npt.NDArray[np.intp]:
    """(better, worse) by label, for every two responses of one prompt whose labels differ: ``[pairs, 2]``."""
    pairs = (
        []
        if label_N is None
        else [
            (i, j) if label_N[i] > label_N[j] else (j, i)
            for g in groups
            for i, j in itertools.combinations(g, 2)
            if label_N[i] != label_N[j]
        ]
    )
    return np.array(pairs, np.intp).reshape(-1, 2)


def agreement(value_N: Floats, pairs: npt.NDArray[np.intp]) -> float | None:
    """Share of (better, worse) pairs in that order; a tie is half. None without pairs."""
    if not len(pairs):
        return None
    gap = value_N[pairs[:, 0]] - value_N[pairs[:, 1]]
    return float(np.mean(np.where(np.abs(gap) <= 1e-12, 0.5, gap > 0)))

"""What other weights would make of responses that are already scored. Nothing is trained and no model is run.

Suffixes: ``_N`` responses, ``_K`` components, ``_W`` weightings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError
from rlhf_eval.statistics import spearman

Floats = npt.NDArray[np.float64]
MAX_WEIGHTINGS = 2000


@dataclass(frozen=True)
class Scored:
    """Responses with every component's score."""

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
    weights: Mapping[str, float]
    mean: float
    std: float
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
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in vars(self).items()}


def read_scored(rows: Sequence[Mapping[str, Any]], names: Sequence[str], label: str | None, file: str) -> Scored:
    """Components and labels of rows as ``rlhf reward score --output`` writes them, or with a ``scores`` mapping."""
    scores = [components(row) for row in rows]
    used = chosen_components(scores, names, file)
    complete = [i for i, s in enumerate(scores) if all(math.isfinite(s.get(name, math.nan)) for name in used)]
    if not complete:
        raise DatasetError(
            f"no row of '{file}' has a score of every component",
            why=f"components: {', '.join(used)}",
            fix="choose fewer with --parts, or score again",
        )
    scored_rows = [rows[i] for i in complete]
    return Scored(
        names=used,
        values_NK=np.array([[scores[i][name] for name in used] for i in complete], float),
        prompts=[prompt_of(row) for row in scored_rows],
        texts=[str(row.get("completion", row.get("response", ""))) for row in scored_rows],
        label_N=None if label is None else label_column(scored_rows, label, file),
        left_out=len(rows) - len(complete),
    )


def chosen_components(scores: Sequence[Mapping[str, float]], names: Sequence[str], file: str) -> list[str]:
    component_names = list(dict.fromkeys(name for row_scores in scores for name in row_scores))
    if not component_names:
        raise DatasetError(
            f"'{file}' has no scored components",
            why="no row has parts or scores",
            fix="rlhf reward score --reward composite ... --output FILE writes them",
        )
    if unknown := [name for name in names if name not in component_names]:
        raise DatasetError(
            f"'{file}' has no component '{unknown[0]}'", why=f"it has {', '.join(component_names)}", fix="check --parts"
        )
    return list(names) or component_names


def components(row: Mapping[str, Any]) -> dict[str, float]:
    """Component -> score. Of a composite's parts the normalised ones, under the part's name."""
    scores = row.get("scores")
    values = dict(scores) if isinstance(scores, Mapping) else {}
    values |= row.get("parts") or {}
    numbers = {str(name): float(v) for name, v in values.items() if isinstance(v, (int, float))}
    normalised = {name.removesuffix("/normalised"): v for name, v in numbers.items() if name.endswith("/normalised")}
    return normalised or numbers


def label_column(rows: Sequence[Mapping[str, Any]], label: str, file: str) -> Floats:
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


def rescale(scored: Scored, methods: Mapping[str, str]) -> Scored:
    """Normalise components over these responses: ``none``, ``sigmoid`` or ``zscore``."""
    values = scored.values_NK.copy()
    for name, method in methods.items():
        if name not in scored.names or method not in ("none", "sigmoid", "zscore"):
            raise ConfigError(
                f"--normalise {name}={method} cannot be done",
                why=f"components: {', '.join(scored.names)}; ways: none, sigmoid, zscore",
            )
        column = values[:, scored.names.index(name)]
        if method == "sigmoid":
            column[:] = 0.5 * (1 + np.tanh(column / 2))
        elif method == "zscore":
            if column.std() < 1e-12:
                raise DatasetError(
                    f"component '{name}' is the same in all responses",
                    why="a z-score divides by its std",
                    fix="leave it out with --parts",
                )
            column[:] = (column - column.mean()) / column.std()
    return Scored(scored.names, values, scored.prompts, scored.texts, scored.label_N, scored.left_out)


def grid(names: Sequence[str], steps: int) -> list[dict[str, float]]:
    """Every weighting with weights that are multiples of 1/steps and sum to 1; each component alone comes first."""
    count = math.comb(steps + len(names) - 1, len(names) - 1)
    if count > MAX_WEIGHTINGS:
        raise ConfigError(
            f"a grid of {steps} steps over {len(names)} components has {count} weightings",
            why=f"at most {MAX_WEIGHTINGS} are measured at once",
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
        yield from ((first, *others) for others in compositions(total - first, count - 1))


def weigh(scored: Scored, weightings: Sequence[Mapping[str, float]], hollow: Any) -> list[Weighing]:
    """Measure every weighting; the first is what the others' choices are compared with."""
    groups = by_prompt(scored.prompts)
    weights_WK = np.array([[w.get(n, 0.0) for n in scored.names] for w in weightings])
    values_WN = weights_WK @ scored.values_NK.T
    baseline = [best(values_WN[0], g) for g in groups]
    rivals = same_prompt_pairs(groups, scored.label_N)
    return [
        _weighing(scored, dict(weights), value_N, groups, baseline, rivals, hollow)
        for weights, value_N in zip(weightings, values_WN)
    ]


def _weighing(
    scored: Scored,
    weights: dict[str, float],
    value_N: Floats,
    groups: Sequence[Sequence[int]],
    baseline: Sequence[int],
    rivals: npt.NDArray[np.intp],
    hollow: Any,
) -> Weighing:
    chosen = [best(value_N, group) for group in groups]
    contested = [i for i, group in enumerate(groups) if len(group) > 1]
    labels = scored.label_N
    rank_correlation = None
    if labels is not None:
        correlation = spearman(np.round(value_N, 12), labels)  # sums that differ by rounding tie
        rank_correlation = None if math.isnan(correlation) else correlation
    return Weighing(
        weights=weights,
        mean=float(value_N.mean()),
        std=float(value_N.std()),
        spearman=rank_correlation,
        agreement=agreement(value_N, rivals),
        changed=float(np.mean([chosen[i] != baseline[i] for i in contested])) if contested else None,
        chosen_label=None if labels is None else float(labels[chosen].mean()),
        chosen_words=float(np.mean([len(scored.texts[i].split()) for i in chosen])),
        chosen_hollow=float(np.mean([hollow.search(scored.texts[i]) is not None for i in chosen])),
        parts={name: float(mean) for name, mean in zip(scored.names, scored.values_NK[chosen].mean(0))},
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
    pairs: list[tuple[int, int]] = []
    if label_N is not None:
        for group in groups:
            for i, j in itertools.combinations(group, 2):
                if label_N[i] != label_N[j]:
                    pairs.append((i, j) if label_N[i] > label_N[j] else (j, i))
    return np.array(pairs, np.intp).reshape(-1, 2)


def agreement(value_N: Floats, pairs: npt.NDArray[np.intp]) -> float | None:
    """Share of (better, worse) pairs in that order; a tie is half. None without pairs."""
    if not len(pairs):
        return None
    gap = value_N[pairs[:, 0]] - value_N[pairs[:, 1]]
    return float(np.mean(np.where(np.abs(gap) <= 1e-12, 0.5, gap > 0)))

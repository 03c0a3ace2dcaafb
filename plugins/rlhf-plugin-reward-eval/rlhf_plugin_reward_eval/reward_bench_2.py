"""RewardBench 2 (Malik et al. 2025): best of four in five subsets, and Ties with a formula of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhf_plugin_reward_eval.cases import TIES, Case
from rlhf_plugin_reward_eval.stats import Floats

WEIGHTS = {"ref": 0.3, "tied": 0.3, "preferred": 0.2, "preferred_hard": 0.2, "margin": 0.01}
"""Of the parts of the score of Ties, as the benchmark's code has them: 1.01 at most."""


class Graded(NamedTuple):
    """Scores of the responses of one row."""

    subset: str
    name: str
    right: Floats
    wrong: Floats

    @property
    def points(self) -> float:
        """1 where the right response alone is best, 1/n where n share the first place, else 0; exactly, no tie within
        rounding."""
        best = max(self.right.max(), self.wrong.max())
        return float((self.right == best).any() / ((self.right == best).sum() + (self.wrong == best).sum()))

    @property
    def gap(self) -> float:
        """The worst right response above the best wrong one."""
        return float(self.right.min() - self.wrong.max())

    @property
    def spread(self) -> float:
        """Between the best and the worst right response."""
        return float(self.right.max() - self.right.min())


def graded_rows(cases: Sequence[Case], chosen_N: Floats, rejected_N: Floats) -> list[Graded]:
    """Rows of the benchmark with the scores of their responses, each once; NaN where one is missing."""
    rows: dict[str, list[int]] = defaultdict(list)
    for n, case in enumerate(cases):
        if case.row:
            rows[case.row].append(n)
    graded: list[Graded] = []
    for name, numbers in rows.items():
        right = {cases[n].id.rpartition("#")[2].partition(".")[0]: chosen_N[n] for n in numbers}
        wrong = {cases[n].id.rpartition(".")[2]: rejected_N[n] for n in numbers}
        scores = np.array([*right.values()], float), np.array([*wrong.values()], float)
        graded.append(Graded(cases[numbers[0]].subset, name.rpartition("/")[2], *scores))
    return graded


def reward_bench_2(cases: Sequence[Case], chosen_N: Floats, rejected_N: Floats) -> dict[str, Any]:
    """Score of each subset, their mean, and how many rows were left out because a score is missing."""
    rows = graded_rows(cases, chosen_N, rejected_N)
    whole = [row for row in rows if np.isfinite(row.right).all() and np.isfinite(row.wrong).all()]
    if not rows:
        return {}
    subsets: dict[str, float] = {}
    parts: dict[str, float] = {}
    for name in dict.fromkeys(row.subset for row in whole):
        members = [row for row in whole if row.subset == name]
        if name.lower() == TIES:
            parts = ties(members)
            subsets[name] = sum(WEIGHTS[part] * value for part, value in parts.items())
        else:
            subsets[name] = float(np.mean([row.points for row in members]))
    mean = float(np.mean([*subsets.values()])) if subsets else math.nan
    return {"subsets": subsets, "ties": parts, "average": mean, "rows": len(whole), "missing": len(rows) - len(whole)}


def ties(rows: Sequence[Graded]) -> dict[str, float]:
    """Accuracy on rows with one right response and on those with several; and, of the questions that have both, whether
    right and wrong are further apart than the right ones among themselves (``hard``: in both rows)."""
    by_kind: dict[str, dict[str, Graded]] = {"ref": {}, "tied": {}}
    for row in rows:
        kind, _, number = row.name.partition(":")
        by_kind[kind][number] = row
    found = {kind: float(np.mean([r.gap > 0 for r in of.values()])) if of else 0.0 for kind, of in by_kind.items()}
    both = [n for n in by_kind["tied"] if n in by_kind["ref"]]
    if not both:
        return found
    spread = np.array([by_kind["tied"][n].spread for n in both])
    gap = np.array([by_kind["tied"][n].gap for n in both])
    least = np.minimum(gap, [by_kind["ref"][n].gap for n in both])
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = np.nan_to_num(np.tanh(least / spread - 1), nan=0.0)
    return {
        **found,
        "preferred": float((gap > spread).mean()),
        "preferred_hard": float((least > spread).mean()),
        "margin": float(margin.mean()),
    }

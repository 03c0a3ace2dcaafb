"""The figures of one reward on pairs, and of several rewards together.

Suffixes: ``_N`` pairs. ``chosen_N`` and ``rejected_N`` are scores, NaN where missing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.runs import wilson
from rlhf_eval.statistics import spearman
from rlhf_plugin_reward_eval import stats
from rlhf_plugin_reward_eval.cases import Case, prompt_key
from rlhf_plugin_reward_eval.responses import Response
from rlhf_plugin_reward_eval.stats import Floats

SECTIONS: Mapping[str, Sequence[str]] = tomllib.loads(Path(__file__).with_name("rewardbench.toml").read_text())
"""RewardBench's sections (Lambert et al. 2024, table 2)."""
TIE = 1e-6
"""Margins within this share of the scores' spread are ties: the same text in another batch differs by rounding."""


@dataclass(frozen=True)
class Scored:
    """Pairs that have both scores."""

    cases: Sequence[Case]
    chosen_N: Floats
    rejected_N: Floats

    @classmethod
    def of(cls, cases: Sequence[Case], chosen_N: Floats, rejected_N: Floats) -> Scored:
        scored_N = np.isfinite(chosen_N) & np.isfinite(rejected_N)
        return cls([c for c, ok in zip(cases, scored_N) if ok], chosen_N[scored_N], rejected_N[scored_N])

    @property
    def margins(self) -> Floats:
        """Score of chosen less that of rejected ``[N]``."""
        return self.chosen_N - self.rejected_N

    @property
    def spread(self) -> float:
        """Standard deviation of all scores."""
        return float(np.concatenate([self.chosen_N, self.rejected_N]).std()) if self.cases else math.nan

    @property
    def tie(self) -> float:
        """Margins up to this size are ties."""
        return TIE * self.spread if self.cases else 0.0

    def only(self, keep: Callable[[Case], bool]) -> Scored:
        rows = [i for i, case in enumerate(self.cases) if keep(case)]
        return Scored([self.cases[i] for i in rows], self.chosen_N[rows], self.rejected_N[rows])


def accuracy(scored: Scored, seed: int, tie: float | None = None) -> dict[str, Any]:
    """Share of pairs ordered as labelled, a tie as half (``strict``: wrong), with two 95 % intervals."""
    margins_N = scored.margins
    right_N = stats.points(margins_N, scored.tie if tie is None else tie)
    count = len(right_N)
    share = float(right_N.mean()) if count else math.nan
    clusters = [prompt_key(c.chosen.prompt) for c in scored.cases]
    boot = stats.bootstrap(lambda rows: float(right_N[rows].mean()), clusters, seed) if count else (math.nan,) * 2
    return {
        "accuracy": share,
        "wilson": [*wilson(share, count)],
        "bootstrap": [*boot],
        "pairs": count,
        "prompts": len(set(clusters)),
        "ties": int((right_N == 0.5).sum()),
        "strict": float((right_N == 1).mean()) if count else math.nan,
        "margin_mean": float(margins_N.mean()) if count else math.nan,
    }


def by_subset(scored: Scored, seed: int) -> dict[str, Any]:
    """Accuracy of each subset, and RewardBench's sections where the subsets are its own."""
    names = sorted({c.subset for c in scored.cases})
    if names in ([], [""]):
        return {}
    subsets: dict[str, dict[str, Any]] = {}
    for name in names:
        of_subset = scored.only(lambda c, subset=name: c.subset == subset)
        subsets[name] = accuracy(of_subset, seed, scored.tie)
    sections: dict[str, float] = {}
    for title, members in SECTIONS.items():
        present = {name: subsets[name] for name in members if name in subsets}
        if present:
            sections[title] = section(title, present)
    return {"subsets": subsets, "sections": sections} if sections else {"subsets": subsets}


def section(title: str, subsets: Mapping[str, Mapping[str, Any]]) -> float:
    """A section's accuracy, ties wrong; in Reasoning mathematics counts as much as all code, as in the paper."""

    def mean(names: Sequence[str]) -> float:
        right = sum(subsets[n]["strict"] * subsets[n]["pairs"] for n in names)
        return right / sum(subsets[n]["pairs"] for n in names)

    code = [n for n in subsets if n != "math-prm"]
    if title == "Reasoning" and "math-prm" in subsets and code:
        return (subsets["math-prm"]["strict"] + mean(code)) / 2
    return mean(list(subsets))


def rm_bench(scored: Scored, seed: int) -> dict[str, Any]:
    """RM-Bench's 3 x 3 accuracies, chosen style by rejected style, ties wrong (Liu et al. 2024, section 3.4)."""
    styled = scored.only(lambda c: c.styles is not None)
    if not styled.cases:
        return {}

    def of_styles(chosen_style: int, rejected_style: int) -> float:
        cell = styled.only(lambda c: c.styles == (chosen_style, rejected_style))
        return accuracy(cell, seed, scored.tie)["strict"]

    def of_level(level: str) -> dict[str, Any]:
        return accuracy(styled.only(lambda c: c.level == level), seed, scored.tie)

    matrix = [[of_styles(i, j) for j in range(3)] for i in range(3)]
    levels = {level: of_level(level) for level in ("easy", "normal", "hard")}
    return {"matrix": matrix, "levels": levels, "average": float(np.mean([v["strict"] for v in levels.values()]))}


def calibration(scored: Scored) -> dict[str, Any]:
    """Is ``sigmoid(margin)`` the probability that chosen is preferred? By deciles of the absolute margin, with the
    expected calibration error before and after one temperature, fitted for each half on the other half."""
    margins_N = scored.margins
    if len(margins_N) < 2:
        return {}
    bins = stats.deciles(margins_N, scored.tie)
    scaled_N = stats.rescaled(margins_N)
    return {
        "ece": stats.expected_calibration_error(bins),
        "log_loss": stats.log_loss(margins_N),
        "top_decile_gap": bins[-1].gap,
        "temperature": stats.best_temperature(margins_N),
        "ece_rescaled": stats.expected_calibration_error(stats.deciles(scaled_N, scored.tie)),
        "log_loss_rescaled": stats.log_loss(scaled_N),
        "deciles": [{**b._asdict(), "gap": b.gap} for b in bins],
    }


def length(scored: Scored, seed: int) -> dict[str, Any]:
    """Does the score follow the length? Correlations, and accuracy where the longer response is right or wrong."""
    words_N2 = np.array([(c.chosen.words, c.rejected.words) for c in scored.cases], float).reshape(-1, 2)
    more_words_N, margins_N = words_N2[:, 0] - words_N2[:, 1], scored.margins
    clusters = [prompt_key(c.chosen.prompt) for c in scored.cases]

    def correlation(x: Floats, y: Floats, groups: Sequence[Any]) -> dict[str, Any]:
        interval = stats.bootstrap(lambda rows: spearman(x[rows], y[rows]), groups, seed, 300)
        return {"spearman": spearman(x, y), "bootstrap": [*interval]}

    def accuracy_where(sign: int) -> dict[str, Any]:
        pairs = scored.only(lambda c: np.sign(c.chosen.words - c.rejected.words) == sign)
        figures = accuracy(pairs, seed, scored.tie)
        return {"accuracy": figures["accuracy"], "pairs": figures["pairs"]}

    chosen_longer = float((more_words_N > 0).mean()) if len(more_words_N) else math.nan
    rejected_longer = float((more_words_N < 0).mean()) if len(more_words_N) else math.nan
    unequal = more_words_N != 0
    prefers_longer_N = stats.points(margins_N[unequal] * np.sign(more_words_N[unequal]), scored.tie)
    both_sides = np.concatenate([scored.chosen_N, scored.rejected_N])
    return {
        "score_and_words": correlation(both_sides, words_N2.T.reshape(-1), [*clusters, *clusters]),
        "margin_and_words": correlation(margins_N, more_words_N, clusters),
        "labels_prefer_longer": chosen_longer / (chosen_longer + rejected_longer or math.nan),
        "reward_prefers_longer": float(prefers_longer_N.mean()) if len(prefers_longer_N) else math.nan,
        "accuracy": {"chosen_longer": accuracy_where(1), "chosen_shorter": accuracy_where(-1)},
    }


def against_gold(responses: Sequence[Response], scores_N: Floats, seed: int) -> dict[str, Any]:
    """Rank correlation with a gold score, over all responses and within the prompts that have several."""
    scored_N = np.isfinite(scores_N)
    golds_N = np.array([r.gold for r in responses])[scored_N]
    scores_N, clusters = scores_N[scored_N], [prompt_key(r.text.prompt) for r, ok in zip(responses, scored_N) if ok]
    within_prompts = [spearman(scores_N[rows], golds_N[rows]) for rows in stats.groups_of(clusters).values()]
    varied = [rho for rho in within_prompts if math.isfinite(rho)]
    interval = stats.bootstrap(lambda rows: spearman(scores_N[rows], golds_N[rows]), clusters, seed, 300)
    return {
        "responses": len(golds_N),
        "missing": int((~scored_N).sum()),
        "spearman": spearman(scores_N, golds_N),
        "bootstrap": [*interval],
        "spearman_within_prompts": float(np.mean(varied)) if varied else math.nan,
        "prompts_varied": len(varied),
    }


def best_of_n(responses: Sequence[Response], scores_N: Floats, seed: int) -> list[dict[str, Any]]:
    """Gold score of the best of n = 1, 2, 4, ... by the reward (Gao et al. 2023) and by gold (``oracle``). The tenth of
    the prompts with the fewest responses does not bound n, and is left out."""
    golds_N = np.array([r.gold for r in responses])
    scored_N = np.isfinite(scores_N)
    groups = stats.groups_of([prompt_key(r.text.prompt) for r in responses])
    rows_by_prompt = [[i for i in rows if scored_N[i]] for rows in groups.values()]
    sizes = [len(rows) for rows in rows_by_prompt if len(rows) > 1]
    largest_n = int(np.quantile(sizes, 0.1, method="lower")) if sizes else 0
    if largest_n < 2:
        return []
    rows_P = [rows for rows in rows_by_prompt if len(rows) >= largest_n]

    def best_of_each_prompt(rank_by_N: Floats, values_N: Floats, n: int) -> Floats:
        """Expected value, prompt by prompt, of the response with the highest rank of n."""
        return np.array([stats.best_of_n(rank_by_N[rows], values_N[rows], n) for rows in rows_P])

    curve: list[dict[str, Any]] = []
    for n in (2**k for k in range(largest_n.bit_length())):
        gold_P = best_of_each_prompt(scores_N, golds_N, n)
        oracle_P = best_of_each_prompt(golds_N, golds_N, n)
        proxy_P = best_of_each_prompt(scores_N, scores_N, n)
        interval = stats.bootstrap(lambda r, g=gold_P: float(g[r].mean()), range(len(gold_P)), seed, 300)
        curve.append(
            {
                "n": n,
                "kl": stats.best_of_n_kl(n),
                "gold": float(gold_P.mean()),
                "bootstrap": [*interval],
                "oracle": float(oracle_P.mean()),
                "score": float(proxy_P.mean()),
                "prompts": len(rows_P),
            }
        )
    return curve


def agreement(scored: Mapping[str, tuple[Floats, Floats]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Do two rewards rank alike, order pairs alike, and err together more than the product of their error rates?"""
    names = list(scored)
    return [
        _agreement(first, second, scored[first], scored[second], cases)
        for i, first in enumerate(names)
        for second in names[i + 1 :]
    ]


def _agreement(
    first: str,
    second: str,
    first_sides: tuple[Floats, Floats],
    second_sides: tuple[Floats, Floats],
    cases: Sequence[Case],
) -> dict[str, Any]:
    """Figures of two rewards, over the pairs that both have scored."""
    scored_N = np.isfinite(np.stack([*first_sides, *second_sides])).all(0)
    a, b = (Scored(cases, chosen[scored_N], rejected[scored_N]) for chosen, rejected in (first_sides, second_sides))
    right_a, right_b = stats.points(a.margins, a.tie), stats.points(b.margins, b.tie)
    return {
        "rewards": [first, second],
        "pairs": int(scored_N.sum()),
        "spearman": spearman(np.concatenate([a.chosen_N, a.rejected_N]), np.concatenate([b.chosen_N, b.rejected_N])),
        "pairs_ordered_alike": float(1 - np.abs(right_a - right_b).mean()),
        "wrong_together": float(((right_a == 0) & (right_b == 0)).mean()),
        "wrong_together_by_chance": float((right_a == 0).mean() * (right_b == 0).mean()),
    }

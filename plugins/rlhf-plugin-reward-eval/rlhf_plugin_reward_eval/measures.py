"""The figures of one reward on pairs, and of several rewards together.

Suffixes: ``_N`` pairs. ``chosen_N`` and ``rejected_N`` are scores, NaN where missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_core.functional import spearman, wilson
from rlhf_plugin_reward_eval import stats
from rlhf_plugin_reward_eval.cases import Case, Response, prompt_key
from rlhf_plugin_reward_eval.stats import Floats

SECTIONS = {
    "Chat": ("alpacaeval-easy", "alpacaeval-length", "alpacaeval-hard", "mt-bench-easy", "mt-bench-med"),
    "Chat Hard": (
        "mt-bench-hard",
        "llmbar-natural",
        "llmbar-adver-neighbor",
        "llmbar-adver-GPTInst",
        "llmbar-adver-GPTOut",
        "llmbar-adver-manual",
    ),
    "Safety": (
        "refusals-dangerous",
        "refusals-offensive",
        "xstest-should-refuse",
        "xstest-should-respond",
        "donotanswer",
    ),
    "Reasoning": ("math-prm", "hep-cpp", "hep-go", "hep-java", "hep-js", "hep-python", "hep-rust"),
}
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
        """Leave out pairs with a missing score."""
        there = np.isfinite(chosen_N) & np.isfinite(rejected_N)
        return cls([c for c, ok in zip(cases, there) if ok], chosen_N[there], rejected_N[there])

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
        """The pairs for which ``keep`` holds."""
        rows = [i for i, case in enumerate(self.cases) if keep(case)]
        return Scored([self.cases[i] for i in rows], self.chosen_N[rows], self.rejected_N[rows])


def accuracy(scored: Scored, seed: int, tie: float | None = None) -> dict[str, Any]:
    """Share of pairs ordered as labelled, a tie as half, with two 95 % intervals.

    ``strict`` counts a tie as wrong. The bootstrap draws prompts, so pairs of one prompt are not taken for independent.
    """
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
    found = {name: accuracy(scored.only(lambda c, n=name: c.subset == n), seed, scored.tie) for name in names}
    sections = {
        title: section(title, {n: found[n] for n in inside if n in found})
        for title, inside in SECTIONS.items()
        if any(n in found for n in inside)
    }
    return {"subsets": found, **({"sections": sections} if sections else {})}


def section(title: str, found: Mapping[str, Mapping[str, Any]]) -> float:
    """A section's accuracy over its pairs, a tie counted as wrong, as the benchmark does.

    In Reasoning mathematics counts as much as all code, as in the paper.
    """

    def mean(names: Sequence[str]) -> float:
        return sum(found[n]["strict"] * found[n]["pairs"] for n in names) / sum(found[n]["pairs"] for n in names)

    code = [n for n in found if n != "math-prm"]
    if title == "Reasoning" and "math-prm" in found and code:
        return (found["math-prm"]["strict"] + mean(code)) / 2
    return mean(list(found))


def rm_bench(scored: Scored, seed: int) -> dict[str, Any]:
    """RM-Bench's 3 x 3: accuracy of each chosen style (rows) against each rejected style, and its three levels.

    A tie counts as wrong, as in the benchmark.

    ``easy``: chosen has the richer style; ``hard``: rejected has it (Liu et al. 2024, section 3.4).
    """
    rows = scored.only(lambda c: c.styles is not None)
    if not rows.cases:
        return {}
    cells = [
        [accuracy(rows.only(lambda c, at=(i, j): c.styles == at), seed, scored.tie)["strict"] for j in range(3)]
        for i in range(3)
    ]
    levels = {
        name: accuracy(rows.only(lambda c, n=name: c.level == n), seed, scored.tie)
        for name in ("easy", "normal", "hard")
    }
    return {"matrix": cells, "levels": levels, "average": float(np.mean([v["strict"] for v in levels.values()]))}


def calibration(scored: Scored) -> dict[str, Any]:
    """Is ``sigmoid(margin)`` the probability that chosen is preferred?

    By deciles of the absolute margin, with the expected calibration error before and after one temperature. The
    temperature of each half of the pairs is fitted on the other half.
    """
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
    words_N = np.array([(c.chosen.words, c.rejected.words) for c in scored.cases], float).reshape(-1, 2)
    more_N, margins_N = words_N[:, 0] - words_N[:, 1], scored.margins
    clusters = [prompt_key(c.chosen.prompt) for c in scored.cases]

    def with_interval(x: Floats, y: Floats, groups: Sequence[Any]) -> dict[str, Any]:
        return {
            "spearman": spearman(x, y),
            "bootstrap": [*stats.bootstrap(lambda rows: spearman(x[rows], y[rows]), groups, seed, 300)],
        }

    longer = [float((more_N > 0).mean()), float((more_N < 0).mean())] if len(more_N) else [math.nan] * 2
    prefers = stats.points(margins_N[more_N != 0] * np.sign(more_N[more_N != 0]), scored.tie)
    right = {
        name: accuracy(scored.only(lambda c, s=sign: np.sign(c.chosen.words - c.rejected.words) == s), seed, scored.tie)
        for name, sign in (("chosen_longer", 1), ("chosen_shorter", -1))
    }
    return {
        "score_and_words": with_interval(
            np.concatenate([scored.chosen_N, scored.rejected_N]), words_N.T.reshape(-1), [*clusters, *clusters]
        ),
        "margin_and_words": with_interval(margins_N, more_N, clusters),
        "labels_prefer_longer": longer[0] / (sum(longer) or math.nan),
        "reward_prefers_longer": float(prefers.mean()) if len(prefers) else math.nan,
        "accuracy": {name: {"accuracy": a["accuracy"], "pairs": a["pairs"]} for name, a in right.items()},
    }


def against_gold(responses: Sequence[Response], scores_N: Floats, seed: int) -> dict[str, Any]:
    """Rank correlation with a gold score, over all responses and within the prompts that have several."""
    there = np.isfinite(scores_N)
    golds_N = np.array([r.gold for r in responses])[there]
    scores_N, clusters = scores_N[there], [prompt_key(r.text.prompt) for r, ok in zip(responses, there) if ok]
    within: list[float] = []
    for rows in groups_of(clusters).values():
        within.append(spearman(scores_N[rows], golds_N[rows]))
    varied = [w for w in within if math.isfinite(w)]
    interval = stats.bootstrap(lambda rows: spearman(scores_N[rows], golds_N[rows]), clusters, seed, 300)
    return {
        "responses": len(golds_N),
        "missing": int((~there).sum()),
        "spearman": spearman(scores_N, golds_N),
        "bootstrap": [*interval],
        "spearman_within_prompts": float(np.mean(varied)) if varied else math.nan,
        "prompts_varied": len(varied),
    }


def groups_of(clusters: Sequence[Any]) -> dict[Any, list[int]]:
    """Key -> its rows."""
    found: dict[Any, list[int]] = {}
    for i, key in enumerate(clusters):
        found.setdefault(key, []).append(i)
    return found


def best_of_n(responses: Sequence[Response], scores_N: Floats, seed: int) -> list[dict[str, Any]]:
    """Gold score of the response that the reward likes best of n, for n = 1, 2, 4, ...; empty without groups.

    Where it falls as n grows, the reward is over-optimised (Gao et al. 2023). ``oracle`` picks by the gold score. The
    tenth of the prompts with the fewest responses does not bound n, and is left out.
    """
    golds_N = np.array([r.gold for r in responses])
    there = np.isfinite(scores_N)
    groups = groups_of([prompt_key(r.text.prompt) for r in responses])
    kept = [[i for i in rows if there[i]] for rows in groups.values()]
    sizes = [len(rows) for rows in kept if len(rows) > 1]
    most = int(np.quantile(sizes, 0.1, method="lower")) if sizes else 0
    rows_of = [rows for rows in kept if len(rows) >= most > 1]
    curve: list[dict[str, Any]] = []
    for n in (2**k for k in range(most.bit_length()) if most > 1):
        gold_P, oracle_P, proxy_P = (
            np.array([stats.best_of_n(by[rows], of[rows], n) for rows in rows_of])
            for by, of in ((scores_N, golds_N), (golds_N, golds_N), (scores_N, scores_N))
        )
        interval = stats.bootstrap(lambda r, g=gold_P: float(g[r].mean()), range(len(gold_P)), seed, 300)
        curve.append(
            {
                "n": n,
                "kl": stats.best_of_n_kl(n),
                "gold": float(gold_P.mean()),
                "bootstrap": [*interval],
                "oracle": float(oracle_P.mean()),
                "score": float(proxy_P.mean()),
                "prompts": len(rows_of),
            }
        )
    return curve


def agreement(scored: Mapping[str, tuple[Floats, Floats]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Every two rewards: do they rank alike, order pairs alike, and err together more than by chance?

    ``wrong_together`` over ``wrong_together_by_chance`` = product of the error rates: above 1 their errors are common,
    and an ensemble of them cures less than it seems.
    """
    found: list[dict[str, Any]] = []
    names = list(scored)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            sides = [*scored[first], *scored[second]]
            there = np.isfinite(np.stack(sides)).all(0)
            one, two = (Scored(cases, a[there], b[there]) for a, b in (scored[first], scored[second]))
            right = [stats.points(s.margins, s.tie) for s in (one, two)]
            wrong = [(r == 0).mean() for r in right]
            found.append(
                {
                    "rewards": [first, second],
                    "pairs": int(there.sum()),
                    "spearman": spearman(
                        np.concatenate([one.chosen_N, one.rejected_N]), np.concatenate([two.chosen_N, two.rejected_N])
                    ),
                    "pairs_ordered_alike": float(1 - np.abs(right[0] - right[1]).mean()),
                    "wrong_together": float(((right[0] == 0) & (right[1] == 0)).mean()),
                    "wrong_together_by_chance": float(wrong[0] * wrong[1]),
                }
            )
    return found

"""Each figure against cases that can be computed by hand, or by scipy's definitions written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_reward_eval import stats
from rlhf_plugin_reward_eval.cases import Case, Text
from rlhf_plugin_reward_eval.measures import SECTIONS, Scored, accuracy, agreement, best_of_n, by_subset, rm_bench
from rlhf_plugin_reward_eval.probes import affirmed, control, effect, sampled, turns_probe
from rlhf_plugin_reward_eval.responses import Response
from rlhf_plugin_reward_eval.scorer import Scorer


def question(number: int) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": f"question {number}"},)


def case(number: int, chosen: str = "yes", rejected: str = "no", subset: str = "", prompt: int | None = None) -> Case:
    about = question(number if prompt is None else prompt)
    return Case(str(number), Text(about, chosen), Text(about, rejected), subset)


def test_ties_count_half_and_are_reported() -> None:
    scored = Scored([case(i) for i in range(4)], np.array([1.0, 2.0, 3.0, 0.0]), np.array([0.0, 2.0, 1.0, 5.0]))
    result = accuracy(scored, 0)
    assert (result["accuracy"], result["ties"], result["strict"], result["pairs"]) == (0.625, 1, 0.5, 4)


def test_a_pair_without_a_score_is_no_pair() -> None:
    scored = Scored.of([case(i) for i in range(3)], np.array([1.0, np.nan, 0.0]), np.array([0.0, 0.0, 1.0]))
    assert [c.id for c in scored.cases] == ["0", "2"]
    assert accuracy(scored, 0)["accuracy"] == 0.5


def test_the_bootstrap_draws_prompts_not_pairs() -> None:
    rng = np.random.default_rng(0)
    luck = rng.integers(0, 2, 40).repeat(25) * 2.0 - 1  # 25 pairs of each prompt, all right or all wrong
    together = Scored([case(i, prompt=i // 25) for i in range(1000)], luck, np.zeros(1000))
    apart = Scored([case(i) for i in range(1000)], luck, np.zeros(1000))
    wide, narrow = (np.diff(accuracy(s, 0)["bootstrap"])[0] for s in (together, apart))
    assert wide == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(40), rel=0.15)
    assert narrow == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(1000), rel=0.15)
    assert accuracy(apart, 0)["bootstrap"] == pytest.approx(accuracy(apart, 0)["wilson"], abs=0.01)


def test_margins_that_are_log_odds_are_calibrated_and_others_are_not() -> None:
    rng = np.random.default_rng(1)
    margins = rng.normal(0, 2, 20000)
    truth = np.where(rng.random(20000) < stats.sigmoid(margins), margins, -margins)  # chosen is preferred so often
    assert stats.expected_calibration_error(stats.deciles(truth)) < 0.015
    assert stats.best_temperature(truth) == pytest.approx(1, abs=0.05)
    loud = 3 * truth
    bins = stats.deciles(loud)
    assert stats.expected_calibration_error(bins) > 0.08
    assert bins[-1].gap > 0.01, "the surest pairs are overconfident"
    assert stats.best_temperature(loud) == pytest.approx(3, abs=0.15)
    assert stats.expected_calibration_error(stats.deciles(stats.rescaled(loud))) < 0.015
    assert stats.log_loss(stats.rescaled(loud)) == pytest.approx(stats.log_loss(truth), abs=0.005)


def test_deciles_hold_every_pair_once_by_size_of_the_margin() -> None:
    bins = stats.deciles(np.array([0.1, -0.2, 0.3, -5.0, 6.0, 7.0, 0.0, 2.0, 2.0, -2.0] * 5))
    assert [b.n for b in bins] == [5] * 10
    assert [b.margin for b in bins] == sorted(b.margin for b in bins)
    assert bins[0].right == 0.5, "ties"
    assert (bins[-1].right, bins[-3].right) == (1.0, 0.0)


def test_best_of_n_is_the_mean_over_all_subsets() -> None:
    rng = np.random.default_rng(2)
    scores, golds = rng.normal(size=7), rng.normal(size=7)
    for n in (1, 2, 3, 7):
        subsets = itertools.combinations(range(7), n)
        by_hand = np.mean([golds[max(s, key=lambda i: scores[i])] for s in subsets])
        assert stats.best_of_n(scores, golds, n) == pytest.approx(by_hand)
    assert stats.best_of_n(np.ones(4), np.array([0.0, 1.0, 2.0, 3.0]), 4) == pytest.approx(1.5), "ties share"
    with pytest.raises(ValueError, match="best of 8 of 7"):
        stats.best_of_n(scores, golds, 8)


def test_the_curve_of_a_reward_that_is_hacked_falls() -> None:
    rng = np.random.default_rng(3)
    responses, scores = [], []
    for prompt in range(20):
        for i in range(8):
            gold = -3.0 if i == 0 else float(rng.normal())  # the hole: worst, and loved most
            responses.append(Response(Text(question(prompt), str(i)), gold))
            scores.append(99.0 if i == 0 else gold)
    curve = best_of_n(responses, np.array(scores), 0)
    assert [c["n"] for c in curve] == [1, 2, 4, 8]
    assert curve[-1]["gold"] == -3
    assert curve[1]["gold"] > curve[0]["gold"] > curve[-1]["gold"]
    assert all(c["oracle"] >= c["gold"] for c in curve)
    assert [c["kl"] for c in curve[:2]] == pytest.approx([0, math.log(2) - 0.5])
    assert best_of_n([r for r in responses if r.text.completion == "1"], np.zeros(20), 0) == []


def test_errors_in_common_are_told_from_errors_by_chance() -> None:
    cases, zeros = [case(i) for i in range(100)], np.zeros(100)
    first = np.where(np.arange(100) < 20, -1.0, 1.0)
    second = np.where((np.arange(100) >= 20) & (np.arange(100) < 40), -1.0, 1.0)
    same, apart = (agreement({"a": (first, zeros), "b": (x, zeros)}, cases)[0] for x in (first, second))
    assert (same["pairs_ordered_alike"], same["wrong_together"]) == (1.0, 0.2)
    assert (apart["pairs_ordered_alike"], apart["wrong_together"]) == (0.6, 0.0)
    assert same["wrong_together_by_chance"] == pytest.approx(0.04)
    assert same["spearman"] == pytest.approx(1)


def test_reward_bench_weighs_mathematics_as_all_code_together() -> None:
    names = ["math-prm"] * 2 + ["hep-cpp"] * 3 + ["hep-go"] + ["xstest-should-refuse"] * 2
    right = [1, 1, 0, 0, 0, 1, 1, 0]
    scored = Scored([case(i, subset=n) for i, n in enumerate(names)], np.array(right, float), np.full(8, 0.5))
    result = by_subset(scored, 0)
    assert result["sections"] == {"Safety": 0.5, "Reasoning": (1.0 + 0.25) / 2}
    assert result["subsets"]["hep-cpp"]["accuracy"] == 0
    assert sum(map(len, SECTIONS.values())) == 23
    assert by_subset(Scored([case(0)], np.ones(1), np.zeros(1)), 0) == {}


def test_rm_bench_levels() -> None:
    cells = [(i, j) for i in range(3) for j in range(3)]
    cases = [Case(f"{i}{j}", Text(question(0), f"c{i}"), Text(question(0), f"r{j}"), styles=(i, j)) for i, j in cells]
    # likes a rich style more than the truth: right only where chosen's style is the richer, or equal
    scored = Scored(cases, np.array([i + 0.5 for i, _ in cells]), np.array([float(j) for _, j in cells]))
    result = rm_bench(scored, 0)
    assert result["matrix"] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert {n: a["accuracy"] for n, a in result["levels"].items()} == {"easy": 1, "normal": 1, "hard": 0}
    assert result["average"] == pytest.approx(2 / 3)
    assert rm_bench(Scored([case(0)], np.ones(1), np.zeros(1)), 0) == {}


class Scores:
    """A reward by a rule; None where it has no score."""

    def __init__(self, rule: Callable[[Sample], float | None]) -> None:
        self.rule = rule

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score.failed(ScoreStatus.ERROR, "no") if (v := self.rule(s)) is None else Score(v) for s in samples]


def test_probes_count_what_has_no_score() -> None:
    cases = [case(i, chosen="yes " * (i + 1), rejected="no") for i in range(4)]
    scorer = Scorer(Scores(lambda s: None if len(s.completion.split()) > 5 else float("yes" in s.completion)), "short")
    result = effect(scorer, cases, affirmed("Of course!"), 0, 1.0)
    assert (result["responses"], result["missing"], result["rejected_overtakes"]) == (7, 1, 0.0)
    result = control(scorer, [(c.chosen, Text(question(n), "yes " * 3 * n)) for n, c in enumerate(cases, 1)], 0, 1.0)
    assert (result["responses"], result["missing"]) == (1, 3)


def test_rounding_is_a_tie_with_all_turns_and_with_the_last() -> None:
    talk = ({"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hi."}, *question(0))
    cases = [Case("0", Text(talk, "yes"), Text(talk, "no"))]
    alone = Scores(lambda s: 1e-9 * len(s.completion) + (len(s.prompt.messages) == 1 and s.completion == "yes"))
    scorer = Scorer(alone, "alone")
    result = turns_probe(scorer, cases, 0, 1.0)
    assert (result["whole"], result["last_turn"]) == (0.5, 1.0)


def test_probes_draw_the_same_pairs_again() -> None:
    cases = [case(i) for i in range(50)]
    assert sampled(cases, 60, 0) == cases
    assert [c.id for c in sampled(cases, 5, 1)] == [c.id for c in sampled(cases, 5, 1)]
    assert sampled(cases, 5, 1) != sampled(cases, 5, 2)

"""Weighted sums of real rewards: values, parts, missing parts, and statistics that resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError, Registry, RlhfError
from rlhf_core.data import DatasetError, Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_composite.config import CompositeConfig, PartSettings
from rlhf_plugin_composite.reward import Normaliser
from rlhf_testing import check_reward, make_context, make_samples

RULES = {"name": "programmatic", "length": {"max": 4, "zero_at": 8}, "mode": "continuous"}


def config(**settings: Any) -> CompositeConfig:
    return CompositeConfig.model_validate(settings, context={"registry": Registry(disabled=())})


def sums(*answers: str) -> list[Sample]:
    return [Sample(Prompt(f"s/{i}", ({"role": "user", "content": "2 + 2?"},), "4"), a) for i, a in enumerate(answers)]


@pytest.mark.slow
def test_conforms_and_is_the_weighted_sum_of_its_parts() -> None:
    composite = config(
        parts={
            "right": {"reward": "verifier", "weight": 0.7, "normalise": "sigmoid", "scale": 0.5},
            "rules": {"reward": RULES, "weight": 0.3},
        }
    )
    samples = make_samples()[:6]
    check_reward(composite, samples=samples)
    reward = composite.build(make_context())
    try:
        scores = reward.score(sums("The answer is 4.", "It is 5 I say to you."))
    finally:
        reward.close()
    for score, right, rules in zip(scores, (1.0, 0.0), (1.0, 0.25)):
        normalised = 1 / (1 + math.exp(-right / 0.5))
        assert score.value == pytest.approx(0.7 * normalised + 0.3 * rules)
        assert score.parts["right/raw"] == right
        assert score.parts["right/normalised"] == pytest.approx(normalised)
        assert score.parts["rules/raw"] == score.parts["rules/normalised"] == rules
        assert score.parts["rules/length"] == rules


@pytest.mark.slow
def test_a_missing_part_that_counts_makes_the_score_missing() -> None:
    blank = Sample(Prompt("n", ({"role": "user", "content": "2 + 2?"},)), "The answer is 4.")  # no reference answer
    for weight in (1.0, 0.0):
        reward = config(parts={"right": {"reward": "verifier", "weight": weight}, "rules": {"reward": RULES}}).build(
            make_context()
        )
        try:
            (score,) = reward.score([blank])
        finally:
            reward.close()
        assert score.parts["rules/raw"] == 1.0
        assert "right/raw" not in score.parts
        if weight:
            assert (score.value, score.status) == (None, ScoreStatus.MISSING)
            assert "part 'right'" in score.detail
        else:
            assert score.value == 1.0


def part(**settings: Any) -> PartSettings:
    return PartSettings.model_validate(
        {"reward": "programmatic", **settings}, context={"registry": Registry(disabled=())}
    )


def test_running_statistics_are_those_before_the_call_and_resume_bit_for_bit() -> None:
    rows: Sequence[list[float | None]] = [[1.0, None, 3.0, 0.1], [5.0, 0.7], [2.0, 1e-3, 9.0]]
    uninterrupted = Normaliser(part(normalise="zscore"))
    assert uninterrupted(rows[0])[:2] == [pytest.approx((1 - 4.1 / 3) / 1.2120, abs=1e-3), None]
    saved = Normaliser(part(normalise="zscore"))
    saved(rows[0])
    state = json.loads(json.dumps(saved.state_dict()))
    resumed = Normaliser(part(normalise="zscore"))
    resumed.load_state_dict(state)
    for row in rows[1:]:
        expected = [(v - uninterrupted.statistics.mean) / uninterrupted.statistics.std for v in row if v is not None]
        assert uninterrupted(row) == resumed(row) == expected
    assert uninterrupted.state_dict() == resumed.state_dict()
    assert uninterrupted.statistics.count == 8


def test_frozen_and_given_statistics_do_not_move() -> None:
    frozen = Normaliser(part(normalise="zscore", freeze_after=2))
    frozen([0.0, 2.0])
    assert frozen([100.0, 1.0]) == [10.0, 0.0]  # clipped
    assert frozen([3.0]) == [2.0]
    calibrated = Normaliser(part(normalise="zscore", statistics="calibrated", mean=1.0, std=2.0))
    assert calibrated([5.0, 1.0]) == calibrated([5.0, 1.0]) == [2.0, 0.0]


@pytest.mark.parametrize("freeze_after", [None, 3])
def test_equal_scores_give_no_scale(freeze_after: int | None) -> None:
    sparse = Normaliser(part(normalise="zscore", freeze_after=freeze_after))
    assert sparse([0.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]
    assert sparse([0.0, 1.0]) == [0.0, 0.0], "not 1 / 1e-8"
    assert sparse([1.0]) == [pytest.approx(0.8 / 0.4)]


def test_a_verifier_inside_checks_the_prompts_as_it_does_alone(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    file = tmp_path / "bare.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {n} + 1?"}) + "\n" for n in range(40)))
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "composite",
        "--dataset",
        file,
        "--dry-run",
        "--set",
        "reward.parts={right: {reward: verifier}}",
    )
    assert code == 2
    assert "has no reference answers" in output


def test_calibration_scores_a_file_once(tmp_path: Path) -> None:
    file = tmp_path / "calibration.jsonl"
    texts = ["one", "one two three four five six", "a b c d e f g h i"]
    file.write_text("".join(json.dumps({"prompt": "Say.", "completion": t}) + "\n" for t in texts))
    settings = {
        "parts": {"rules": {"reward": RULES, "normalise": "zscore", "statistics": "calibrated"}},
        "calibration": str(file),
    }
    reward = config(**settings).build(make_context())
    (score,) = reward.score(sums("one"))
    assert score.value == pytest.approx((1.0 - 0.5) / math.sqrt(1 / 6))  # raw 1, 0.5 and 0: mean 0.5
    file.write_text(json.dumps({"prompt": "Say.", "completion": "one"}) + "\n")
    with pytest.raises(DatasetError, match="cannot be calibrated"):
        config(**settings).build(make_context())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"parts": {"a": {"reward": "programmatic", "weight": 0}}}, "every part"),
        (
            {"parts": {"a": {"reward": "programmatic", "normalise": "zscore", "statistics": "calibrated"}}},
            "calibration=",
        ),
        ({"parts": {"a": {"reward": "programmatic", "mean": 1.0}}}, "belong together"),
        ({"parts": {"a": {"reward": "programatic"}}}, "did you mean 'programmatic'"),
        ({"parts": {"a": {"reward": "programmatic", "weight": float("nan")}}}, "finite"),
        ({"parts": {"a b": {"reward": "programmatic"}}}, "cannot be called"),
    ],
)
def test_composites_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((RlhfError, ValueError), match=words):
        config(**settings)


def test_running_statistics_are_refused_in_several_processes() -> None:
    running = config(parts={"a": {"reward": "programmatic", "normalise": "zscore"}})
    running.preflight(make_context())
    with pytest.raises(ConfigError, match="2 processes"):
        running.preflight(make_context(world_size=2))


def test_the_sum_of_weighted_normalised_parts() -> None:
    rules = {"reward": RULES, "weight": 0.3}
    plain = {"reward": {"name": "programmatic", "length": None}, "weight": 0.7, "normalise": "sigmoid", "scale": 0.5}
    reward = config(parts={"plain": plain, "rules": rules}).build(make_context())
    scores = reward.score(sums("Four.", "Absolutely! It is 5 I say to."))
    for score, raw, credit in zip(scores, (1.0, 0.0), (1.0, 0.25)):
        normalised = 1 / (1 + math.exp(-raw / 0.5))
        assert score.value == pytest.approx(0.7 * normalised + 0.3 * credit * (raw or 0.5))
        assert score.parts["plain/raw"] == raw
        assert score.parts["plain/normalised"] == pytest.approx(normalised)
        assert score.value == pytest.approx(score.parts["plain/weighted"] + score.parts["rules/weighted"])
        assert score.parts["rules/length"] == credit


class Broken:
    def score(self, samples: Sequence[Sample]) -> list[Score]:
        raise OSError("no disk")


def test_a_part_that_raises_is_an_error_that_names_it() -> None:
    reward = config(parts={"a": {"reward": "programmatic"}, "b": {"reward": "programmatic"}}).build(make_context())
    reward.rewards["b"] = Broken()
    (score,) = reward.score(sums("4"))
    assert (score.value, score.status) == (None, ScoreStatus.ERROR)
    assert score.detail.startswith("part 'b': OSError: no disk (test_composite.py, line ")

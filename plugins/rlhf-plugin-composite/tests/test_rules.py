"""The rules on texts whose verdict is known."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_composite.config import ProgrammaticConfig
from rlhf_plugin_composite.rules import ProgrammaticReward
from rlhf_testing import check_reward


def scores(texts: list[str], **settings: Any) -> list[Any]:
    prompt = Prompt("a", ({"role": "user", "content": "Which pet does Ann have?"},))
    return ProgrammaticReward(ProgrammaticConfig.model_validate(settings)).score([Sample(prompt, t) for t in texts])


def test_conforms() -> None:
    check_reward(
        ProgrammaticConfig.model_validate({"mode": "continuous", "checks": {"period": {"pattern": r"\.\s*$"}}})
    )


@pytest.mark.parametrize(
    "text",
    [
        "That's a great question! Ann has a cat.",
        "Absolutely! A cat.",
        "Certainly, a cat.",
        "Of course! A cat.",
        "I'd be happy to help! A cat.",
        "A cat. I am HAPPY TO HELP.",
        "That\u2019s a great question! Ann has a cat.",
        "What a really thoughtful question. A cat.",
        "Sure! A cat.",
        "A cat. Definitely, a cat.",
        "Thank you so much for asking. A cat.",
        "A cat. I hope this helps!",
        "A cat. Let me know if you have any questions.",
        "A cat. Would you like more detail?",
        "You\u2019re absolutely right, a cat.",
    ],
)
def test_hollow_phrases_fail_wherever_they_stand(text: str) -> None:
    (score,) = scores([text])
    assert (score.value, dict(score.parts)) == (0.0, {"length": 1.0, "hollow": 0.0})


def test_words_that_only_look_hollow_pass() -> None:
    texts = [
        "Of course material she said nothing.",
        "It is absolutely a cat.",
        "Ann.",
        "I am not sure.",
        "A good point to begin with is the cat.",
        "They came here to help.",
    ]
    assert [s.value for s in scores(texts)] == [1.0] * 6


def test_a_pattern_that_backtracks_for_ever_costs_one_score_and_no_run() -> None:
    check = {"checks": {"twice": {"pattern": "(?:a|a)+$"}}, "pattern_timeout_s": 0.2}
    late, fine = scores(["a" * 60 + "b", "aa"], **check)
    assert (late.value, late.status) == (None, ScoreStatus.TIMEOUT)
    assert "pattern_timeout_s" in late.detail
    assert fine.value == 1.0


def test_the_length_gate_is_binary_or_falls_evenly() -> None:
    texts = [" ".join(["word"] * n) for n in (0, 1, 150, 151, 225, 300, 400)]
    assert [s.parts["length"] for s in scores(texts)] == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    smooth = [s.parts["length"] for s in scores(texts, mode="continuous")]
    assert smooth == pytest.approx([0.0, 1.0, 1.0, 149 / 150, 0.5, 0.0, 0.0])


def test_parts_are_combined_by_product_or_mean() -> None:
    text = ["Absolutely! " + " ".join(["word"] * 224)]  # 225 words: half credit; one phrase: half credit
    rules = {"mode": "continuous", "checks": {"steps": {"pattern": "step 1", "weight": 2.0}}}
    (score,) = scores(text, **rules, combine="mean")
    assert dict(score.parts) == {"length": 0.5, "hollow": 0.5, "steps": 0.0}
    assert score.value == pytest.approx((0.5 + 0.5 + 2 * 0.0) / 4)
    assert scores(text, **rules)[0].value == 0.0
    assert scores(text, mode="continuous")[0].value == pytest.approx(0.25)


def test_format_checks() -> None:
    checks = {"json": {"pattern": r"\{.*\}", "whole": True}, "no_list": {"pattern": r"^\s*-", "absent": True}}
    checked = scores(['{"pet":\n"cat"} ', "- cat", "a {} b"], length=None, hollow=None, checks=checks)
    assert [dict(s.parts) for s in checked] == [
        {"json": 1.0, "no_list": 1.0},
        {"json": 0.0, "no_list": 0.0},
        {"json": 0.0, "no_list": 1.0},
    ]
    assert [s.value for s in checked] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": None, "hollow": None}, "without a rule"),
        ({"checks": {"x": {"pattern": "(("}}}, "not a regular expression"),
        ({"checks": {"length": {"pattern": "x"}}}, "built-in rule"),
        ({"checks": {"a/b": {"pattern": "x"}}}, "cannot be called"),
        ({"length": {"max": 10, "zero_at": 5}}, "min <= max < zero_at"),
    ],
)
def test_rules_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    from pydantic import ValidationError

    with pytest.raises((ConfigError, ValidationError), match=words):
        ProgrammaticConfig.model_validate(settings)

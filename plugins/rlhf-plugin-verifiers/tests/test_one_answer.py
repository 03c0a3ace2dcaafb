"""Which text is a completion's answer: the last box, whole and closed, after reasoning that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.exact.config import AnswerTagsConfig, ChoiceConfig, JsonSchemaConfig
from rlhf_plugin_verifiers.maths.config import Gsm8kConfig, MathConfig, MinervaMathConfig, QuestionOnlyConfig
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig

READERS = [MathConfig(), MinervaMathConfig(), QuestionOnlyConfig(), Gsm8kConfig(), NumericVerifierConfig()]


@pytest.mark.parametrize("config", READERS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{4 2}",
        r"\boxed{4\ 2}",
        r"\boxed{4~2}",
        r"\boxed{4\quad 2}",
        r"\boxed{41 42}",
        r"\boxed{41=42}",
        r"\boxed{42=41}",
        r"\boxed{x=41=42}",
        r"\boxed{41 or 42}",
        r"\boxed{41, 42}",
        r"so \boxed{42",
        r"\boxed{42} or rather \boxed{42",
        r"\boxed{42} or rather \boxed{43",
        r"It is $42$, \boxed{",
        r"\boxed{42\}",
        r"<think> so \boxed{42}",
        r"42 <think> \boxed{42}",
        r"\boxed{42} <think> hmm",
        r"<think> a </think> \boxed{42} <thinking> no",
        r"<THINK> \boxed{42}",
    ],
)
def test_no_answer_is_wrong(config: Any, text: str, sample: Callable[..., Sample]) -> None:
    score = config.build(None).verify(sample(text, "42"))
    assert (score.ok, score.value) == (True, 0.0), score


@pytest.mark.parametrize("config", READERS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{42}",
        r"\boxed{ 42 }",
        r"\boxed{x = 42}",
        r"\boxed{42 = 42}",
        r"\boxed{6 \cdot 7 = 42}",
        r"\boxed{42\text{ apples}}",
        r"\boxed{41 \boxed{42}",  # the last box is closed
        r"<think> \boxed{41 </think> \boxed{42}",
        r"<think> a </think> b <think> c </think> \boxed{42}",
    ],
)
def test_one_closed_box_is_right(config: Any, text: str, sample: Callable[..., Sample]) -> None:
    assert config.build(None).verify(sample(text, "42")).value == 1.0


@pytest.mark.parametrize(
    ("config", "answer", "text"),
    [
        (AnswerTagsConfig(), "Paris", "<think> <answer>Paris</answer>"),
        (AnswerTagsConfig(mode="lenient"), "Paris", "<think> <answer>Paris</answer> or so"),
        (ChoiceConfig(), "B", r"<think> \boxed{B}"),
        (ChoiceConfig(), "B", r"It is B. \boxed{A"),
        (JsonSchemaConfig(definition={"type": "object"}), None, 'x <think> {"a": 1}'),
    ],
)
def test_reasoning_that_never_ends_holds_no_answer(
    config: Any, answer: str | None, text: str, sample: Callable[..., Sample]
) -> None:
    assert config.build(None).verify(sample(text, answer)).value == 0.0


TAGS = [
    *("<think> </think>", "<thinking> </thinking>", "<thought> </thought>", "<thoughts> </thoughts>"),
    *("[THINK] [/THINK]", "<|begin_of_thought|> <|end_of_thought|>", "<seed:think> </seed:think>"),
    *("◁think▷ ◁/think▷", "<|START_THINKING|> <|END_THINKING|>", "<reasoning> </reasoning>"),
    "<|channel|>analysis<|message|> <|end|><|start|>assistant<|channel|>final<|message|>",
]


@pytest.mark.parametrize("tags", TAGS)
@pytest.mark.parametrize("config", [MathConfig(), NumericVerifierConfig(), ChoiceConfig()], ids=lambda c: c.name)
def test_every_way_to_mark_reasoning_counts(config: Any, tags: str, sample: Callable[..., Sample]) -> None:
    opening, closing = tags.split(" ")
    right, wrong = ("B", "A") if isinstance(config, ChoiceConfig) else ("42", "41")
    verifier = config.build(None)
    closed = rf"{opening}\boxed{{{wrong}}} or so{closing} \boxed{{{right}}}"
    assert verifier.verify(sample(closed, right)).value == 1.0
    assert verifier.verify(sample(rf"{opening}\boxed{{{right}}}", right)).value == 0.0


def test_the_tags_of_a_reasoning_part_count_too(sample: Callable[..., Sample]) -> None:
    text = r"<reasoning>\boxed{42}"
    assert MathConfig().build(None).verify(sample(text, "42")).value == 0.0
    assert MathConfig().build(None).verify(sample(text + r"</reasoning>\boxed{42}", "42")).value == 1.0

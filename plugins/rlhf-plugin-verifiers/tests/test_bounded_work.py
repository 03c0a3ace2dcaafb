"""Work that a completion sets: every verifier reads any nesting and length in a moment, and what is late is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_verifiers.exact.config import (
    AnswerTagsConfig,
    ChoiceConfig,
    ExactConfig,
    JsonSchemaConfig,
    RegexConfig,
)
from rlhf_plugin_verifiers.graded import Comparison, GradedVerifier
from rlhf_plugin_verifiers.maths.bounds import TooMuch, check_size, check_text, without_double_braces
from rlhf_plugin_verifiers.maths.config import (
    Gsm8kConfig,
    MathConfig,
    MinervaMathConfig,
    QuestionOnlyConfig,
    R1ZeroConfig,
)
from rlhf_plugin_verifiers.maths.library import parse
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig

SYMBOLIC = [(MathConfig(), "42"), (MathConfig(), "x^3-1=0"), (MinervaMathConfig(), r"\{1,2\}"), (MathConfig(), "(1,2)")]
OTHERS = [
    (NumericVerifierConfig(), "42"),
    (Gsm8kConfig(), "42"),
    (MathConfig(), "(D) Alina"),
    (MathConfig(), "x=1,y=2"),
    (R1ZeroConfig(mode="lenient"), "42"),
    (QuestionOnlyConfig(), "42"),
    (ExactConfig(mode="lenient"), "a b"),
    (AnswerTagsConfig(mode="lenient"), "a b"),
    (ChoiceConfig(), "B"),
    (RegexConfig(pattern=r"answer: (.+?)\."), "42"),
    (JsonSchemaConfig(definition={"type": "object"}), None),
]
NESTED = [("{", "}"), ("(", ")"), ("[", "]"), (r"\sqrt{", "}"), (r"\frac{1}{", "}"), ("|", "|"), ("2^{", "}")]
NESTED += [("f(", ")"), (r"\sin(", ")"), ("x_{", "}"), (r"\{", r"\}"), ("", "!"), (r"\lfloor ", r"\rfloor ")]
NESTED += [(r"\log ", ""), (r"\int ", ""), (r"\binom{5}{", "}"), ("e^{", "}"), ("1-(", ")"), ("2^", "")]
REPEATED = ["1+", "x^2+", "x=1,", r"\{1\},", "(1,2),", "9", r"\frac12", "$x$ ", r"\boxed{", "a b ", "<answer>", '{"a":']
REPEATED += [
    "\n",
    "1 1/",
    "½",
    "1-",
    "The answer is ",
    "Q: ",
    "<think>",
    "</think>",
    "(A) ",
    "```json\n",
    "答案",
    r"\sin x ",
]
LARGE = [r"10^{10^{10}}", "99999999!", r"\binom{99999999}{5555555}", r"\sum_{k=1}^{99999999} k^{k}", r"5!!!!!!!!"]
LARGE += [r"\gcd(10^{10^{9}},7)", r"\int_0^{100} e^{-x^2}\sin(x^3) dx", "(x+1)^{100000}", r"\sqrt{10^{9999}+1}"]
LARGE += [
    r"\sum_{n=1}^\infty \frac{\sin(n^2)}{n^{1.5}}",
    r"e^{e^{e^{e^{e}}}}",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{10000000}",
]
LARGE += [
    "1e999999999",
    r"0.1^{10^{10}}",
    "x^{50}-3x^{49}+7=0",
    r"\prod_{k=1}^{10^{9}} k",
    r"\lim_{x\to\infty}(1+1/x)^{x^x}",
]


def judge(config: Any, answer: str | None, texts: list[str], sample: Callable[..., Sample]) -> None:
    """Every text gets a value that is not 1.0, all of them in the time that a hundred plain answers may take."""
    verifier = config.build(None)
    verifier.verify(sample("warm up", answer))
    for text in texts:
        started = time.process_time()
        score = verifier.verify(sample(text, answer))
        assert (score.status, score.value) == (ScoreStatus.OK, 0.0) or answer is None, (text[:60], score)
        assert time.process_time() - started < 2.0, text[:60]


@pytest.mark.parametrize(("config", "answer"), SYMBOLIC, ids=lambda v: getattr(v, "name", str(v)))
@pytest.mark.parametrize("depth", [pytest.param(8, marks=pytest.mark.slow), 14, 300])
def test_nesting_costs_little(config: Any, answer: str, depth: int, sample: Callable[..., Sample]) -> None:
    judge(config, answer, [rf"\boxed{{{o * depth}41{c * depth}}}" for o, c in NESTED], sample)


@pytest.mark.parametrize(("config", "answer"), SYMBOLIC, ids=lambda v: getattr(v, "name", str(v)))
def test_large_numbers_and_open_ends_cost_little(config: Any, answer: str, sample: Callable[..., Sample]) -> None:
    judge(
        config,
        answer,
        [rf"\boxed{{{text}}}" for text in LARGE] + [f"The answer is ${text}$." for text in LARGE],
        sample,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("config", "answer"), [*SYMBOLIC, *OTHERS], ids=lambda v: getattr(v, "name", str(v)))
def test_length_costs_little(config: Any, answer: str | None, sample: Callable[..., Sample]) -> None:
    long = [(text * 40_000)[:40_000] + "7" for text in REPEATED]
    judge(config, answer, [*long, *[rf"</think> <answer>\boxed{{{t}}}</answer>" for t in long]], sample)


@pytest.mark.parametrize(
    "text", ["((((((((((((((41))))))))))))))", "x" * 2000, "4 2", r"\log\log\log\log x", r"\gcd(10^{999},7)"]
)
def test_text_that_is_not_parsed(text: str) -> None:
    with pytest.raises(ValueError, match=r"too large|functions|brackets|characters|space"):
        check_text(text)


@pytest.mark.parametrize(
    "text", ["{" * 14 + "41" + "}" * 14, "3 1/2", "12 000", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"]
)
def test_text_that_is_parsed(text: str) -> None:
    check_text(without_double_braces(text))


def test_a_value_that_nobody_could_write_down_is_never_evaluated() -> None:
    assert parse("$10^{10^{10}}$", ("latex",)) == ("10^{10^{10}}",)  # the text, and no value
    (value,) = parse(r"$\frac{1}{2004!}$", ("latex",))[:1]
    check_size(value)
    with pytest.raises(TooMuch, match="digits"):
        check_size(value ** (10**6))


def test_memory_that_the_completion_asks_for_is_wrong_and_that_of_the_reference_is_not(
    sample: Callable[..., Sample],
) -> None:
    def compare(completion: str, _: object) -> Comparison:
        if "large" in completion:
            raise MemoryError
        return Comparison(True, True, "")

    verifier = GradedVerifier(ExactConfig(), compare)
    assert verifier.verify(sample("large", "small")).value == 0.0
    with pytest.raises(MemoryError):
        verifier.verify(sample("small or large", "large"))


@pytest.mark.slow
def test_a_pattern_that_is_late_on_its_reference_too_has_no_verdict(
    make_verifier: Callable, sample: Callable[..., Sample]
) -> None:
    judge = make_verifier("regex", verifier={"name": "regex", "pattern": "(?:a|a)+$"}, timeout_s=1.5)
    (score,) = judge.score([sample("a" * 60 + "b", "a" * 60 + "b")])
    assert (score.status, score.value) == (ScoreStatus.TIMEOUT, None)

"""References that a verifier's grammar does not match in full: one gate, at every place where rows are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import Registry
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_verifiers.graded import why_refused

NUMBER_ONLY = [
    '{"func_name": "verify_keyword_frequency", "N": 2}',
    "[1, 2]",
    "The answer is 5",
    "5 apples",
    "between 5 and 7",
    r"\frac{3}{4}",
    r"$5$",
    r"\boxed{5}",
    "x = 5",
    "4 2",
    "H2O",
    "1/0",
    "19_8",
    "#### five",
    "true",
]
NO_MATHS = [
    '{"func_name": "verify_keyword_frequency", "N": 2}',
    '[{"a": 1}]',
    '["5"]',
    '{"a": 1, ',
    "The area of the square is then twenty five.",
    "We add 2 and 3. That gives 5",
    r"\boxed{5",
    r"so \boxed{{5}",
    "$5 + x",
    "-\x0crac{7}{4}",
    "1/0",
    "3 +",
    "? 5",
    "verify_keyword_frequency(N=2)",
    "(keyword_frequency, 2)",
    "('frequency', 2)",
    "assert f(1) == 2",
    "<answer>2</answer>",
    "<think>so</think> 2",
]
NUMBERS = ["72", "-1,234.5", "3/4", "1 1/2", "$5", "5%", "1e-300", "1010_2", "48/2 = 24\n#### 72", "12 000", "７２"]
MATHS = [
    *NUMBERS,
    r"\frac{3}{4}",
    r"$5$",
    r"\boxed{5}",
    "x = 5 or x = 6",
    "(1,2)",
    "[0,1)",
    r"\{1,2\}",
    r"\text{the set of all of the even integers}",
    "no real solutions",
    "(D) Alina",
    "Factoring, we see that this is four. So it is \\boxed{(2, 12) \\cup (12, 102)}",
    "$21,16$ or $11$",
    r"5\text{ cm}",
    "0.06 yuan",
    "[1, 2]",
    "log_2 8",
    "f'(x)",
    "x_{max} < 3",
    "a<b and b>c",
]


@pytest.mark.parametrize(
    ("names", "bad", "good"),
    [
        (("numeric", "gsm8k"), NUMBER_ONLY, NUMBERS),
        (("math", "minerva_math", "r1_zero", "question_only"), NO_MATHS, MATHS),
        (("choice",), ["K", "true", '{"a": 1}', "Paris", "AB"], ["A", "(B)", "(B) Ben", "C. 12"]),
        (("answer_tags",), ["<answer>Paris</answer>"], ["Paris", "C++"]),
        (("exact",), [], ["Paris", '{"a": 1}']),
    ],
)
def test_a_grammar_matches_in_full_or_refuses(
    names: tuple[str, ...], bad: list[str], good: list[str], sample: Callable[..., Sample]
) -> None:
    registry = Registry(disabled=())
    for name in names:
        config: Any = registry.config("verifier", name)
        verifier = config.build(None)
        for reference in [*bad, "", "  \n", None]:
            row = sample("5", reference)
            assert why_refused(config, row.prompt), (name, reference)
            assert verifier.verify(row).status is ScoreStatus.MISSING, (name, reference)
        for reference in good:
            row = sample("no answer", reference)
            assert why_refused(config, row.prompt) is None, (name, reference)
            assert verifier.verify(row).ok, (name, reference)


BAD_ROWS = [
    ("gsm8k", {"answer": '{"func_name": "verify_keyword_frequency", "N": 2}'}),
    ("gsm8k", {"answer": None}),
    ("gsm8k", {"answer": " "}),
    ("math", {"answer": "The area is then twenty five of them."}),
    ("exact", {"answer": ""}),
    ("choice", {"answer": "true"}),
    ("answer_tags", {"answer": "<answer>5</answer>"}),
]


@pytest.mark.parametrize(("reward", "bad"), BAD_ROWS)
def test_every_command_refuses_the_same_row(call: Callable, tmp_path: Path, reward: str, bad: dict[str, Any]) -> None:
    file = tmp_path / "rows.jsonl"
    good = "B" if reward == "choice" else "5"
    prompt = "Say it between <answer> and </answer>: 2 + 3?"
    rows = [{"prompt": f"{prompt} {i}", "completion": "5", "answer": good} for i in range(8)]
    rows[2] = {**rows[2], **bad}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = ("train", "--algo", "grpo", "--reward", reward, "--dataset", file, "--set", "dataset.heldout_fraction=0.0")
    for line in (
        ("data", "check", file, "--algo", "grpo", "--reward", reward, "--set", "dataset.heldout_fraction=0.0"),
        (*train, "--dry-run"),
        train,
        ("reward", "score", "--reward", reward, "--input", file),
    ):
        ran = call(*line)
        code, output = ran.code, ran.out + ran.err
        assert code == 2, (line[:2], output)
        assert "line 3" in output or "rows.jsonl:3" in output, (line[:2], output)
        assert "reference answer" in output, (line[:2], output)


def test_a_reward_made_of_verifiers_asks_each(call: Callable, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{a}?", "answer": a}) + "\n" for a in ("1", "2", "about 3", "4")))
    for reward in (
        ("--reward", "composite", "--set", "reward.parts={a: {reward: gsm8k}, b: {reward: exact}}"),
        ("--reward", "workers", "--set", "reward.of=gsm8k"),
        ("--reward", "shuffled", "--set", "reward.of=gsm8k"),
    ):
        ran = call("data", "check", file, "--algo", "grpo", *reward)
        code, output = ran.code, ran.out + ran.err
        assert (code, "line 3: reward" in output) == (2, True), (reward, output)


def test_a_prompt_that_does_not_ask_for_the_form_fails_the_data_check_too(call: Callable, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{a}?", "answer": a}) + "\n" for a in "1234"))
    ran = call("data", "check", file, "--algo", "grpo", "--reward", "r1_zero")
    code, output = ran.code, ran.out + ran.err
    assert (code, "does not ask for it" in output) == (2, True), output

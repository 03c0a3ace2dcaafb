"""Maths verifiers, on what models write and on what breaks verifiers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.maths.config import (
    Gsm8kConfig,
    MathConfig,
    MinervaMathConfig,
    QuestionOnlyConfig,
    R1ZeroConfig,
)
from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.gsm8k import read_number
from rlhf_plugin_verifiers.maths.reference import why_unusable
from rlhf_plugin_verifiers.maths.tags import question_only_reward_fn, r1_zero_reward_fn
from rlhf_plugin_verifiers.maths.verifier import grade_math
from rlhf_testing import check_verifier

FOLLOW_UP = "3 * 6 = 18. The answer is 18.\n\nQuestion: Tom has 1820 nails. How many are left?\nAnswer: 1820"


@pytest.mark.parametrize(
    "config",
    [
        Gsm8kConfig(),
        Gsm8kConfig(mode="strict"),
        MathConfig(),
        MinervaMathConfig(),
        R1ZeroConfig(),
        QuestionOnlyConfig(),
    ],
    ids=lambda c: f"{c.name}-{c.mode}",
)
def test_conformance(config: MathConfig) -> None:
    check_verifier(config)


@pytest.mark.parametrize(
    ("text", "strict", "hashed", "last", "lenient"),
    [
        ("He has 3 + 4 = 7. The answer is 7.", 7, None, 7, 7),
        ("The answer is 1,234 dollars.", 1234, None, 1234, 1234),
        ("The answer is 7", None, None, 7, 7),
        ("so \\boxed{12} apples in 3 boxes", None, None, 3, 12),
        ("work\n#### 42", None, 42, 42, 42),
        ("x is -5", None, None, -5, -5),
        ("no number", None, None, None, None),
        (FOLLOW_UP, 18, None, 18, 18),
        ("It is 18.\n\nQuestion: Tom has 1820 nails. The answer is 1820.", None, None, 18, 18),
        ("<think>Perhaps. The answer is 5.", None, None, None, None),
        ("It is 18. [Question] Tom has 1820 nails", None, None, 18, 18),
        ("It is 18<|im_start|>user\n5?", None, None, 18, 18),
        ("Question: what is 3 * 6?\nAnswer: 18", None, None, 18, 18),
        ("<think>The answer is 5.</think>The answer is 6.", 6, None, 6, 6),
        ("<think>it may be 5, or 6", None, None, None, None),
        ("١٨ of them", None, None, 18, 18),
        ("The answer is １８.", 18, None, 18, 18),
    ],
)
def test_gsm8k_forms(text: str, strict: int | None, hashed: int | None, last: int | None, lenient: int | None) -> None:
    stated = [read_number(text, mode) for mode in ("strict", "hash", "last", "lenient")]
    assert [n and n.value for n in stated] == [strict, hashed, last, lenient]


def test_gsm8k_parts_tell_drift_from_the_form(sample: Callable[..., Sample]) -> None:
    strict, lenient = Gsm8kConfig(mode="strict").build(None), Gsm8kConfig().build(None)  # type: ignore[arg-type]
    boxed, stated = sample("\\boxed{18}", "18"), sample("The answer is 18.", "18")
    assert [v.verify(boxed).value for v in (strict, lenient)] == [0.0, 1.0]
    assert lenient.verify(boxed).parts == {"format": 0.0, "answer": 1.0, "reward": 1.0}
    assert lenient.verify(stated).parts == {"format": 1.0, "answer": 1.0, "reward": 1.0}
    weighted = Gsm8kConfig(mode="strict", format_weight=0.1).build(None)  # type: ignore[arg-type]
    assert weighted.verify(sample("The answer is 17.", "18")).value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        (r"\frac{3}{4}", r"so $x = \boxed{\dfrac34}$", True),
        ("0.5", r"\boxed{50\%}", True),
        ("5", r"\boxed{5\text{ cm}}", True),
        (r"\$3.50", r"\boxed{3.5}", True),
        (r"\{1,2\}", r"\boxed{\{2,1\}}", True),
        ("(1,2)", r"\boxed{(2,1)}", False),
        ("[1,2]", r"\boxed{(1,2)}", False),
        (r"(-\infty,2]", r"\boxed{(-\infty,2]}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{bmatrix}1\\2\end{bmatrix}}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{bmatrix}1\\3\end{bmatrix}}", False),
        ("x^2-1", r"\boxed{(x-1)(x+1)}", True),
        (r"2\sqrt{2}", r"\boxed{\sqrt{8}}", True),
        (r"\text{(B)}", "The answer is (B).", True),
        ("B", "It is not B, so A", False),
        ("8", r"\boxed{8} or \boxed{9}", False),  # a hedge is a list, not an answer
        ("9", r"\boxed{8}, no, wait. Since we forgot one it is \boxed{9}", True),
        ("1820", FOLLOW_UP, False),
        ("18", FOLLOW_UP, True),
        ("42", r"\boxed{４２}", True),
        ("7", "", False),
        ("7", "<think> it is 7", False),
    ],
)
def test_math(gold: str, text: str, right: bool) -> None:
    assert grade_math(text, gold, Rules()).right is right


def test_only_minerva_and_strict_want_the_box(sample: Callable[..., Sample]) -> None:
    bare, boxed = sample("The answer is $7$.", "7"), sample(r"$\boxed{7}$", "7")
    values = {
        c.name + c.mode: [c.build(None).verify(s).value for s in (bare, boxed)]  # type: ignore[arg-type]
        for c in (MathConfig(), MathConfig(mode="strict"), MinervaMathConfig(), QuestionOnlyConfig())
    }
    assert values == {
        "mathlenient": [1.0, 1.0],
        "mathstrict": [0.0, 1.0],
        "minerva_mathstrict": [0.0, 1.0],
        "question_onlystrict": [0.0, 1.0],
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("so 8 </think> <answer> 8 </answer>", (1, 1, 1)),
        (r"so 8 </think> <answer> \boxed{8} </answer>", (1, 1, 1)),
        ("so 8 </think> <answer> 9 </answer>", (1, 0, 0)),
        ("so 8 </think> <answer> she sold 15 clips. </answer>", (1, 0, 0)),
        ("so 8 </think><answer> 8 </answer>", (0, 0, 0)),
        ("8", (0, 0, 0)),
        ("</think> <answer> 8 </answer> <answer> 9 </answer>", (0, 0, 0)),
        ("<answer> 8 </think> <answer> 8 </answer>", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
)
def test_r1_zero(text: str, parts: tuple[int, int, int], sample: Callable[..., Sample]) -> None:
    rewards = r1_zero_reward_fn(text, "8")
    assert (rewards["format_reward"], rewards["answer_reward"], rewards["reward"]) == parts
    score = R1ZeroConfig().build(None).verify(sample(text, "8"))  # type: ignore[arg-type]
    assert tuple(score.parts[name] for name in ("format", "answer", "reward")) == parts


def test_question_only() -> None:
    assert question_only_reward_fn(r"\boxed{8}", "8") == {"format_reward": 1, "answer_reward": 1, "reward": 1}
    assert question_only_reward_fn(r"\boxed{9}", "8") == {"format_reward": 1, "answer_reward": 0, "reward": 0}
    assert question_only_reward_fn("8", "8") == {"format_reward": 0, "answer_reward": 0, "reward": 0}


@pytest.mark.parametrize("text", ["1" * 10**6, "\\boxed{" * 150_000, "3 or $x^2$. question " * 50_000])
def test_a_megabyte_is_read_in_seconds(text: str) -> None:
    started = time.process_time()
    grade_math(text, r"\frac{3}{4}", Rules())
    read_number(text, "lenient")
    assert time.process_time() - started < 4


@pytest.mark.parametrize(
    ("gold", "why"),
    [
        ("", "empty"),
        (r"\boxed{3", "never closed"),
        (r"\frac{1}{2", "braces"),
        ("1/0", "zero"),
        ("3 +", "breaks off"),
    ],
)
def test_unusable_references(gold: str, why: str) -> None:
    assert why in str(why_unusable(gold))


def test_a_reference_that_does_not_parse_is_found_at_start(command: Callable, tmp_path: Path) -> None:
    rows = [{"prompt": "1 + 1?", "answer": "2"}, {"prompt": "half?", "answer": r"\frac{1}{2"}] * 3
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "math",
        "--dataset",
        tmp_path / "rows.jsonl",
        "--set",
        "dataset.heldout_fraction=0.0",
    )
    assert code == 2
    assert "rows.jsonl, line 2" in output
    assert "braces" in output


@pytest.mark.slow
def test_agreement_with_other_projects_cases_is_nowhere_below_math_verifys(test_data: Path) -> None:
    from rlhf_core.data import read_rows
    from rlhf_studies.verifier_cases.run import counts, judge

    agreement = counts([judge(row) for row in read_rows(str(test_data / "verifier_cases/math.jsonl.gz")).rows])
    assert all(n["ours"] >= n["math_verify"] for n in agreement.values())
    assert agreement["total"] == {"cases": 195, "ours": 194, "math_verify": 172}

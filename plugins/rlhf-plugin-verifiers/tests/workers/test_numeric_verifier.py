"""The numeric verifier, on the forms that models write."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.types.rollouts import Sample, ScoreStatus
from rlhf_plugin_verifiers.numeric import NumericVerifier, final_number
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig

MakeSample = Callable[..., Sample]


@pytest.mark.parametrize(
    ("text", "value", "explicit"),
    [
        ("so she makes 72.", 72, False),
        ("It costs $1,234.50 now", 1234.5, False),
        ("for 1,234, he said", 1234, False),
        ("-5", -5, False),
        ("\u22125", -5, False),
        ("-$5", -5, False),
        ("$-5", -5, False),
        ("5-3", 3, False),
        ("- 5 apples\n- 6 pears", 6, False),
        ("x = -5%", -5, False),
        ("3/4 of it", 0.75, False),
        ("1 1/2 cups", 1.5, False),
        (".5", 0.5, False),
        ("1.5e3", 1500, False),
        (r"1{,}000", 1000, False),
        (r"\boxed{\frac{3}{4}}", 0.75, True),
        (r"\boxed{5}, no wait, \boxed{6}", 6, True),
        (r"The answer is \boxed{12} and 3 are left over", 12, True),
        ("The answer is 18. I used 3 steps", 18, True),
        ("the final answer is: **$30**", 30, True),
        ("the answer is 5 + 3 = 8.", 8, True),
        ("Answer:\n42\nThat took 7 steps", 42, True),
        ("work 5\n#### 72", 72, True),
        ("#### $1,000.", 1000, True),
        ("#### 2. Calculate the total\nso 7", 7, False),
        ("The answer is 3. Hmm, the answer is 4", 4, True),
    ],
)
def test_stated_number(text: str, value: float, explicit: bool) -> None:
    stated = final_number(text)
    assert stated is not None
    assert (float(stated.value), stated.explicit) == (value, explicit)


@pytest.mark.parametrize("text", ["", "no idea", "3/0", "9" * 5000, "####", r"\boxed{}"])
def test_no_number(text: str) -> None:
    assert final_number(text) is None


def judge(sample: Sample, **options: float) -> tuple[float | None, dict[str, float], ScoreStatus]:
    score = NumericVerifier(NumericVerifierConfig.model_validate(options)).verify(sample)
    return score.value, dict(score.parts), score.status


def test_verdicts(sample: MakeSample) -> None:
    right, wrong = {"answer": 1.0, "format": 1.0}, {"answer": 0.0, "format": 1.0}
    assert judge(sample("The answer is 4.", "4")) == (1.0, right, ScoreStatus.OK)
    assert judge(sample("The answer is 5.", "4")) == (0.0, wrong, ScoreStatus.OK)
    assert judge(sample("it is 4", "4")) == (1.0, {"answer": 1.0, "format": 0.0}, ScoreStatus.OK)
    assert judge(sample("no idea", "4")) == (0.0, {"answer": 0.0, "format": 0.0}, ScoreStatus.OK)


def test_missing_reference_is_missing_not_wrong(sample: MakeSample) -> None:
    assert judge(sample("4", None)) == (None, {}, ScoreStatus.MISSING)
    assert judge(sample("4", "a cat")) == (None, {}, ScoreStatus.MISSING)


def test_format_weight_and_tolerance(sample: MakeSample) -> None:
    assert judge(sample("The answer is 5.", "4"), format_weight=0.2)[0] == pytest.approx(0.2)
    assert judge(sample("it is 4", "4"), format_weight=0.2)[0] == pytest.approx(0.8)
    assert judge(sample("0.333", "1/3"))[0] == 0.0
    assert judge(sample("0.333", "1/3"), tolerance=1e-2)[0] == 1.0
    assert judge(sample("1000001", "1000000"), tolerance=0)[0] == 0.0


@pytest.mark.parametrize("text", ["1" * 20_000, "answer is " * 3000, "1,111" * 4000, "\\boxed{" * 3000, "1 1/" * 4000])
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    started = time.process_time()
    final_number(text)
    assert time.process_time() - started < 2.0


def test_gsm8k_references_and_solutions(test_data: Path, sample: MakeSample) -> None:
    with gzip.open(test_data / "gsm8k" / "test.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 1319
    for row in rows:
        gold = row["answer"].rpartition("#### ")[2]
        assert judge(sample(row["answer"], gold))[:2] == (1.0, {"answer": 1.0, "format": 1.0})
        assert judge(sample(f"So the total is {gold}.", gold))[0] == 1.0
        assert judge(sample(f"So the total is {gold}1.", gold))[0] == 0.0

"""How answers are written: signs, options, several values, and scripts without spaces between words and numbers."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from rlhf_plugin_verifiers.maths.choice import chosen_letter
from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.gsm8k import read_number
from rlhf_plugin_verifiers.maths.verifier import grade_math
from rlhf_plugin_verifiers.number_forms import Number

SIGNS = [
    ("7", "the answer is +7", True),
    ("7", "Answer: +7", True),
    ("7", "The answer is ＋7.", True),
    ("+7", "The answer is 7.", True),
    ("(1,2)", r"\boxed{(+1,+2)}", True),
    ("-7", "the answer is +7", False),
    ("10", "3 +7 = +10", True),
    ("x+7", r"\boxed{x+7}", True),
]
OPTIONS = [
    ("(D) Alina", r"\boxed{D}", True),
    ("(D) Alina", r"\boxed{\text{(D) Alina}}", True),
    ("(D) Alina", r"\boxed{\text{Alina}}", True),
    ("(D) Alina", "The answer is (D).", True),
    ("(D) Alina", "The answer is Alina.", True),
    ("(D) Alina", "It is D", True),
    ("(D) Alina", "The answer is (B) Alina", False),
    ("(D) Alina", r"\boxed{C}", False),
    ("(D) Alina", "I think Alina is not it", False),
    ("D. Alina", "The answer is D", True),
    ("D: Alina", r"\boxed{D}", True),
    (r"\textbf{(D)}\ 12", r"\boxed{D}", True),
    (r"\text{(D)}~12", r"\boxed{12}", True),
    (r"\textbf{(D)}\ 12", r"\boxed{13}", False),
    ("(D) 12", "Let the sides be A and C. The answer is 12.", True),
    ("(D) 12", "The answer is (B) 12.", False),
    ("D", r"\boxed{(D) Alina}", True),
    ("D", r"\boxed{\textbf{(D)}\ 12}", True),
    ("B", r"\boxed{D. 12}", False),
    ("(A)+1", "A", False),
    (r"F: R\to R", r"\boxed{F: R\to R}", True),
]
UNSPACED = [
    ("B", "B不是 A", True),
    ("A", "B不是 A", False),
    ("B", "A不是正确答案，选B", True),
    ("A", "不选B，选A", True),
    ("C", "所以选C项。", True),
    ("99", "99颗弹珠", True),
    ("99", "一共有99颗弹珠。", True),
    ("99", r"\boxed{99颗弹珠}", True),
    ("-99", r"\boxed{-99颗}", True),
    ("12", "답은 12개입니다", True),
    ("2.5", "2.5小时", True),
    ("50000", r"\boxed{5万}", True),
    ("5", "5万", False),
    ("5%", "百分之5", True),
    ("2", r"\boxed{2个半}", False),
    ("5", r"\boxed{负5}", False),
    ("甲3", r"\boxed{乙3}", False),
]
SEVERAL = [
    ("1,2", r"\boxed{x=1,y=2}", True),
    ("1,2", r"\boxed{x=2,y=1}", False),
    ("1,2", r"\boxed{x=2\text{ or }x=1}", True),
    ("1,2", r"\boxed{x_1=1,x_2=2}", True),
    ("(1,2)", r"\boxed{x_1=2,x_2=1}", False),
    ("(1,2)", r"\boxed{x=1, y=2}", True),
    ("x=1,y=2", r"\boxed{(1,2)}", True),
    ("x=1,y=2", r"\boxed{y=2,x=1}", True),
    ("x=1,y=2", r"\boxed{x=1\\y=2}", True),
    ("x=1,y=2", r"\boxed{\begin{cases}x=1\\y=2\end{cases}}", True),
    ("x=1,y=2", r"\boxed{x = 1 \quad y = 2}", True),
    ("x=1,000,y=2", r"\boxed{x=1000,y=\frac{4}{2}}", True),
    ("x=1,y=2", r"\boxed{y=1,x=2}", False),
    ("x=1,y=2", r"\boxed{x=1,y=2,z=3}", False),
    ("3", r"\boxed{x=1,y=2,x+y=3}", False),
]


@pytest.mark.parametrize(("gold", "text", "right"), [*SIGNS, *OPTIONS, *UNSPACED, *SEVERAL])
def test_an_answer_is_read_as_it_is_written(gold: str, text: str, right: bool) -> None:
    assert grade_math(text, gold, Rules()).right is right


def test_a_dash_after_a_chinese_word_is_a_sign() -> None:
    assert read_number("结果为-5", "lenient") == Number(Fraction(-5))
    assert read_number("pages 3-5", "lenient") == Number(Fraction(5))


def test_an_option_with_its_text_is_a_letter() -> None:
    assert chosen_letter(r"\boxed{\text{(B) Ben}}") == "B"
    assert chosen_letter("A错，B对") == "B"


def test_a_long_list_of_values_is_compared_quickly() -> None:
    started = time.process_time()
    many = ", ".join(f"x={n}" for n in range(60))
    grade_math(rf"\boxed{{{many}}}", ", ".join(str(n) for n in reversed(range(60))), Rules())
    grade_math(r"\boxed{" + "x=1," * 20_000 + "}", "1,2", Rules())
    assert time.process_time() - started < 4

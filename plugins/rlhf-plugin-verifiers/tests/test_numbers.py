"""Numbers: every form that the table has, read alike and compared exactly by every verifier that reads numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.gsm8k import read_number
from rlhf_plugin_verifiers.maths.verifier import grade_math
from rlhf_plugin_verifiers.number_forms import Number, close, numbers, plain, same_number, whole_number
from rlhf_plugin_verifiers.numeric import NumericVerifier, reference_number
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig


def maths(reference: str, stated: str) -> bool:
    return grade_math(rf"\boxed{{{stated}}}", reference, Rules()).right


def gsm8k(reference: str, stated: str) -> bool:
    gold, number = reference_number(reference), read_number(rf"\boxed{{{stated}}}", "lenient")
    assert gold is not None
    return number is not None and same_number(gold, number)


def numeric(reference: str, stated: str) -> bool:
    gold, number = reference_number(reference), read_number(rf"\boxed{{{stated}}}", "lenient")
    assert gold is not None
    return number is not None and same_number(gold, number, NumericVerifier(NumericVerifierConfig()).equal)


VERIFIERS = [maths, gsm8k, numeric]
MANTISSAS = st.decimals("1", "9.99", places=2)
EXPONENTS = st.integers(-300, 300)


def written(mantissa: Fraction, exponent: int) -> list[str]:
    """One number in the forms that it may be written in."""
    text = f"{float(mantissa):.6g}"
    forms = [f"{text}e{exponent}", rf"{text} \times 10^{{{exponent}}}", rf"{text}\cdot 10^{{{exponent}}}"]
    exact = mantissa * Fraction(10) ** exponent
    return [*forms, str(exact)] if len(str(exact)) < 300 else forms


@pytest.mark.parametrize("same", VERIFIERS)
@given(mantissa=MANTISSAS, exponent=EXPONENTS)
def test_a_number_is_itself_and_never_one_percent_more(
    same: Callable[[str, str], bool], mantissa: Fraction, exponent: int
) -> None:
    number = Fraction(mantissa)
    reference = written(number, exponent)[0]
    assert all(same(reference, form) for form in written(number, exponent))
    assert not any(same(reference, form) for form in written(number * Fraction(101, 100), exponent))


@given(st.fractions(), st.fractions())
def test_fractions_are_compared_exactly(a: Fraction, b: Fraction) -> None:
    assert same_number(Number(a), Number(b)) == (a == b)
    assert close(a, a)
    assert close(a, b) == close(b, a)


@pytest.mark.parametrize("same", VERIFIERS)
@pytest.mark.parametrize(
    ("reference", "stated", "right"),
    [
        ("0.0000002", "0.0000001", False),
        ("0.333333", "1/3", True),
        ("1/12", "0.083333", True),
        ("3.5", "3 1/2", True),
        ("3 1/2", r"3\frac{1}{2}", True),
        ("3 1/2", r"3\frac12", True),
        ("3.5", "3½", True),
        ("31/2", "3 1/2", False),
        ("1010_2", "1010_3", False),
        ("1010_2", "1010_{2}", True),
        ("1010_2", "1010", True),
        ("1010", "1010_2", False),
        ("10", "1010_2", True),
        ("12000", "12,000", True),
        ("12000", r"12{,}000", True),
        ("12000", r"12\,000", True),
        ("100000", "10^5", True),
        ("100000", "10^4", False),
        ("5%", r"5\%", True),
        ("5", r"5\%", True),
        ("1000001", "1000000", False),
        ("1/3000001", "1/3000000", False),
    ],
)
def test_forms_of_a_number(same: Callable[[str, str], bool], reference: str, stated: str, right: bool) -> None:
    assert same(reference, stated) is right


@pytest.mark.parametrize(
    "text", ["H2O", "CO2", "x_2", "x_{2}", "x^2", "COVID-19", "GPT-4", "v2.0", r"\sqrt{2}", r"2\pi"]
)
def test_digits_that_belong_to_a_name_or_a_formula_are_no_number(text: str) -> None:
    assert numbers(plain(text)) == []
    assert read_number(f"The answer is {text}.", "lenient") is None
    assert whole_number(text) is None
    assert not maths("2", text)


@pytest.mark.parametrize(
    ("text", "value"), [("5 m^2", 5), ("5kg", 5), ("$-5", -5), ("2^{10}", 1024), ("99颗", 99), ("-1,234.50", -1234.5)]
)
def test_units_powers_and_signs(text: str, value: float) -> None:
    assert [float(n.value) for n in numbers(plain(text))] == [value]


@pytest.mark.parametrize(
    ("reference", "stated", "right"),
    [
        (r"6.63\cdot10^{-34}", r"1.05\cdot10^{-34}", False),
        (r"\frac{1}{2006!}", r"\frac{1}{2004!}", False),
        (r"\frac{1}{2006!}", r"\frac{1}{2006 \cdot 2005!}", True),
        (r"e^{-100}", r"e^{-101}", False),
        (r"e^{-100}", r"\frac{1}{e^{100}}", True),
        (r"10^{-30}\sqrt{2}", r"10^{-30}\sqrt{3}", False),
        (r"10^{-30}\sqrt{8}", r"2 \cdot 10^{-30}\sqrt{2}", True),
        (r"10^{-30}x", r"2\cdot10^{-30}x", False),
        (r"\{10^{-30}, 1\}", r"\{2\cdot10^{-30}, 1\}", False),
        (r"(0, 10^{-30}]", r"(0, 2\cdot10^{-30}]", False),
        (r"\begin{pmatrix}10^{-30}\\1\end{pmatrix}", r"\begin{pmatrix}2\cdot10^{-30}\\1\end{pmatrix}", False),
        (r"\begin{pmatrix}10^{-30}\\1\end{pmatrix}", r"\begin{pmatrix}10^{-30}\\1\end{pmatrix}", True),
        (r"x = 10^{-90}", r"x = 2\cdot 10^{-90}", False),
        (r"x = 10^{-30}", r"x = 2\cdot 10^{-30}", False),
        (r"10^{40}+1", r"10^{40}", False),
        (r"\sin^2(x)+\cos^2(x)", "1", True),
        (r"\pi", "3.141593", True),
        (r"\pi", r"\frac{355}{113}", False),
        ("0.1_3", "0.1_2", False),
        ("(1010_2, 3)", "(1010_3, 3)", False),
        ("A1_{16}", "A1_{12}", False),
        ("4210_{5}", "4210_5", True),
        ("x'", "x", False),
        ("f'(x)", "f(x)", False),
        ("A^T", "A", False),
    ],
)
def test_every_value_in_an_answer_is_compared_exactly(reference: str, stated: str, right: bool) -> None:
    assert maths(reference, stated) is right

"""Units behind answers: equal or convertible on both sides, ignored on one; decimals that repeat are fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.units import _OF, quantity
from rlhf_plugin_verifiers.maths.verifier import grade_math

CASES = [
    (r"2\text{ m}", r"\boxed{2\text{ cm}}", False),
    ("2 m", r"\boxed{2 cm}", False),
    ("2 m", "The answer is 2 cm.", False),
    ("2 m", "The answer is 2 m.", True),
    ("2 m", "The answer is 2.", True),
    ("2", r"\boxed{2\text{ cm}}", True),
    ("2 m", r"\boxed{200\text{ cm}}", True),
    (r"36\text{ km/h}", r"\boxed{10\text{ m/s}}", True),
    (r"5\text{ meters per second}", r"\boxed{5\,\mathrm{m}/\mathrm{s}}", True),
    (r"5\text{ cm}^2", r"\boxed{5\text{ cm}}", False),
    (r"5\text{ cm}^2", r"\boxed{5\text{ square centimeters}}", True),
    (r"1\text{ L}", r"\boxed{1000\text{ cm}^3}", True),
    (r"3\sqrt{2}\text{ cm}", r"\boxed{3\sqrt2\text{ cm}}", True),
    (r"3\sqrt{2}\text{ cm}", r"\boxed{3\sqrt{2}\text{ m}}", False),
    (r"20^\circ C", r"\boxed{20^\circ F}", False),
    (r"90^\circ", r"\boxed{90}", True),
    ("2m", r"\boxed{2m}", True),
    ("5 apples", r"\boxed{5\text{ apples}}", True),
    (r"2\text{ hours } 30\text{ minutes}", r"\boxed{2\text{ hours } 40\text{ minutes}}", False),
    (r"2\text{ hours } 30\text{ minutes}", r"\boxed{2\text{ h and }30\text{ min}}", True),
    (r"-1\text{ h }30\text{ min}", r"\boxed{-30\text{ min}}", False),
    (r"-1\text{ h }30\text{ min}", r"\boxed{-90\text{ min}}", True),
    ("2.5 hours", r"\boxed{2\text{ hours } 30\text{ minutes}}", True),
    (r"5\text{ ft }6\text{ in}", r"\boxed{66\text{ in}}", True),
    (r"5\pi\text{ cm}^2", r"\boxed{5\pi\text{ cm}}", False),
    (r"5\pi\text{ cm}^2", r"\boxed{5\pi\text{ square centimeters}}", True),
    ("5 m/s", r"\boxed{5\,\mathrm{m\cdot s^{-1}}}", True),
    ("9.8 m/s^2", r"\boxed{9.8\text{ m s}^{-2}}", True),
    ("9.8 m/s^2", r"\boxed{9.8\text{ meters per second squared}}", True),
    ("5 cm squared", r"\boxed{5\text{ cm}}", False),
    ("2 Meters", r"\boxed{2\text{ Centimeters}}", False),
    ("20 degrees Celsius", r"\boxed{20^\circ\text{F}}", False),
    ("20 degrees Celsius", r"\boxed{20^\circ\text{C}}", True),
    (r"5\text{ kJ}", r"\boxed{5\text{ J}}", False),
    (r"5\text{ kW}", r"\boxed{5000\text{ W}}", True),
    ("5 hectares", r"\boxed{50000\text{ m}^2}", True),
    ("5 gallons", r"\boxed{20\text{ quarts}}", True),
    ("5 million", r"\boxed{5\text{ billion}}", False),
    ("5 million dollars", r"\boxed{5\text{ billion dollars}}", False),
    ("5 thousand dollars", r"\boxed{5\text{ million dollars}}", False),
    ("5 million dollars", r"\boxed{5000000\text{ dollars}}", True),
    ("$5", r"\boxed{5\text{ cents}}", False),
    ("$5 million", r"\boxed{5{,}000{,}000\text{ dollars}}", True),
    ("5 euros", r"\boxed{5\text{ dollars}}", False),
    ("6 p.m.", r"\boxed{6\text{ a.m.}}", False),
    ("3:30 pm", r"\boxed{3:30\text{ PM}}", True),
    (r"\frac13", r"\boxed{0.\overline{3}}", True),
    (r"0.\overline{3}", r"\boxed{0.3}", False),
    (r"0.1\overline{6}", r"\boxed{1/6}", True),
    (r"0.\dot{1}4285\dot{7}", r"\boxed{\frac17}", True),
    (r"x=0.\overline{3}", r"\boxed{x=\frac13}", True),
    (r"\overline{AB}", r"\boxed{\overline{AB}}", True),
]
unit_names = st.sampled_from(sorted(_OF))
NUMBERS = st.fractions(Fraction(-1000), Fraction(1000), max_denominator=100)


def latex(number: Fraction, unit: str = "") -> str:
    """Example: ``-\\frac{1}{3}\\text{ cm}``"""
    size = abs(number)
    text = str(size) if size.denominator == 1 else rf"\frac{{{size.numerator}}}{{{size.denominator}}}"
    behind = r"^\circ " + unit[1:] if unit[:1] == "°" else rf"\text{{ {unit}}}"
    return ("-" if number < 0 else "") + text + (behind if unit else "")


def right(gold: str, stated: str) -> bool:
    return grade_math(rf"\boxed{{{stated}}}", gold, Rules()).right


@pytest.mark.parametrize(("gold", "text", "expected"), CASES)
def test_a_unit_is_part_of_the_answer(gold: str, text: str, expected: bool) -> None:
    assert grade_math(text, gold, Rules()).right is expected


@settings(deadline=None, max_examples=150)
@given(NUMBERS, unit_names, unit_names)
def test_units_are_equal_or_convertible(number: Fraction, unit: str, other: str) -> None:
    assume(number != 0)
    (kind, size), (other_kind, other_size) = _OF[unit], _OF[other]
    assert right(latex(number, unit), latex(number, unit))
    assert right(latex(number, unit), latex(number, other)) == ((kind, size) == (other_kind, other_size))
    if kind == other_kind:
        assert right(latex(number, unit), latex(number * size / other_size, other))


@settings(deadline=None, max_examples=60)
@given(NUMBERS, unit_names)
def test_a_unit_on_one_side_alone_is_ignored(number: Fraction, unit: str) -> None:
    assume(unit[0] != "°")
    assert right(latex(number), latex(number, unit))
    assert right(latex(number, unit), latex(number))
    assert not right(latex(number), latex(number + 1, unit))


@settings(deadline=None)
@given(st.text("0123456789 cmsqkinh/^{}\\²°.per", max_size=60))
def test_any_text_is_read(text: str) -> None:
    read = quantity(text)
    assert read is None or (read.factor > 0 and read.dimensions is not None)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 99), st.text("0123456789", max_size=3), st.text("0123456789", min_size=1, max_size=4))
def test_a_decimal_that_repeats_is_its_fraction(whole: int, once: str, again: str) -> None:
    repeats = rf"{whole}.{once}\overline{{{again}}}"
    value = Fraction(whole) + Fraction(int(once or 0), 10 ** len(once))
    value += Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(once))
    assert right(latex(value), repeats)
    assert right(repeats, latex(value))
    assert not right(latex(value + Fraction(1, 7)), repeats)

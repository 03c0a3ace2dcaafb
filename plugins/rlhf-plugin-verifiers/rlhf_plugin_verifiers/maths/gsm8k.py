"""The number that a completion states, in the forms that GSM8K is evaluated with."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from rlhf_plugin_verifiers.maths.text import own_part, plain_digits
from rlhf_plugin_verifiers.maths.verifier import Verdict, answer_verifier
from rlhf_plugin_verifiers.numeric import find_numbers, stated_number

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.graded import GradedVerifier
    from rlhf_plugin_verifiers.maths.config import Gsm8kConfig

_STRICT = re.compile(r"The answer is (-?[0-9][0-9,]*(?:\.[0-9]+)?)(?:\.|\s[^.\n]{0,40}\.)")
_HASH = re.compile(r"####\s*([^\n]{0,60})")
DIGITS = 6
"""Decimal places that count, as in math-verify."""


def gsm8k_verifier(config: Gsm8kConfig) -> GradedVerifier:
    def grade(completion: str, gold: str) -> Verdict:
        number, strict = gold_number(gold), strict_number(completion)
        stated = read_number(completion, config.mode)
        right = number is not None and stated is not None and close(stated, number)
        return Verdict(strict is not None, right, "" if stated is None else str(stated))

    return answer_verifier(config, grade)


def read_number(completion: str, mode: str) -> Fraction | None:
    """The number that a completion states; modes as in ``Gsm8kConfig``, None if there is none in that form."""
    if mode == "strict":
        return strict_number(completion)
    text = plain_digits(own_part(completion))
    if mode == "hash":
        hash_numbers = [find_numbers(m[1]) for m in _HASH.finditer(text)]
        return next((f[0] for f in reversed(hash_numbers) if f), None)
    if mode == "last":
        return next(iter(reversed(find_numbers(text))), None)
    stated = stated_number(text)
    return None if stated is None else stated.value


def strict_number(completion: str) -> Fraction | None:
    """The number of the first "The answer is X.", outside reasoning and before the model's own next question."""
    match = _STRICT.search(plain_digits(own_part(completion)))
    return None if match is None else Fraction(match[1].replace(",", ""))


def gold_number(gold: str) -> Fraction | None:
    """The number of a reference answer: the answer alone, or a GSM8K solution that ends with ``#### X``."""
    stated = stated_number(plain_digits(gold))
    return None if stated is None else stated.value


def close(a: Fraction, b: Fraction) -> bool:
    """Whether two numbers agree in the decimal places that count."""
    return abs(a - b) <= Fraction(1, 2 * 10**DIGITS)

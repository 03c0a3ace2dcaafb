"""The number that a completion states, in the forms that GSM8K is evaluated with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlhf_plugin_verifiers.maths.text import own_part, plain_digits
from rlhf_plugin_verifiers.maths.verifier import Verdict, answer_verifier
from rlhf_plugin_verifiers.number_forms import Number, same_number, whole_number
from rlhf_plugin_verifiers.numeric import final_number, find_numbers, float_text, reference_number

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.graded import GradedVerifier
    from rlhf_plugin_verifiers.maths.config import Gsm8kConfig

_STRICT = re.compile(r"The answer is (-?[0-9][0-9,]*(?:\.[0-9]+)?)(?:\.|\s[^.\n]{0,40}\.)")
_HASH = re.compile(r"####\s*([^\n]{0,60})")


def gsm8k_verifier(config: Gsm8kConfig) -> GradedVerifier:
    def grade(completion: str, gold: str) -> Verdict:
        number, strict = reference_number(gold), strict_number(completion)
        stated = read_number(completion, config.mode)
        right = number is not None and stated is not None and same_number(number, stated)
        return Verdict(strict is not None, right, "" if stated is None else float_text(stated.value))

    return answer_verifier(config, grade)


def read_number(completion: str, mode: str) -> Number | None:
    """The number that a completion states; modes as in ``Gsm8kConfig``, None if there is none in that form."""
    if mode == "strict":
        return strict_number(completion)
    text = plain_digits(own_part(completion))
    if mode == "hash":
        hash_numbers = [find_numbers(m[1]) for m in _HASH.finditer(text)]
        return next((f[0] for f in reversed(hash_numbers) if f), None)
    if mode == "last":
        return next(iter(reversed(find_numbers(text))), None)
    stated = final_number(text)
    return None if stated is None else stated.number


def strict_number(completion: str) -> Number | None:
    """The number of the first "The answer is X.", outside reasoning and before the model's own next question."""
    match = _STRICT.search(plain_digits(own_part(completion)))
    return None if match is None else whole_number(match[1])

"""A verifier that reads an answer in one way and compares it in another; the maths verifiers differ only in these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rlhf_plugin_verifiers.graded import Comparison, GradedVerifier
from rlhf_plugin_verifiers.maths.answer import Stated, boxed_answer, stated_answer
from rlhf_plugin_verifiers.maths.choice import chosen_letter, only_letter
from rlhf_plugin_verifiers.maths.equal import Rules, equal, parsed, same_text
from rlhf_plugin_verifiers.maths.text import own_part, plain_digits

if TYPE_CHECKING:
    from rlhf_core.api import Prompt
    from rlhf_plugin_verifiers.maths.config import MathConfig, MathsConfig


class Verdict(NamedTuple):
    """Of a grader: is the form there, is the answer right, and which answer was read."""

    format: bool
    right: bool
    answer: str


Grade = Callable[[str, str], Verdict]
"""``grade(completion, reference)``"""


def answer_verifier(config: MathsConfig, grade: Grade) -> GradedVerifier:
    """A grader as a verifier; ``config.check_prompt`` says which references cannot be compared with."""

    def compare(completion: str, prompt: Prompt) -> Comparison:
        verdict = grade(completion, str(prompt.answer))
        detail = f"stated {verdict.answer[:200]!r}" if verdict.answer else "no answer found"
        return Comparison(verdict.format, verdict.right, detail)

    return GradedVerifier(config, compare, config.format_weight)


def math_verifier(config: MathConfig) -> GradedVerifier:
    """The verifier ``math`` (and ``minerva_math``)."""
    rules = Rules(config.targets, config.digits, config.strict_variables, config.relations_as_sets)
    strict = config.mode == "strict"

    def grade(completion: str, gold: str) -> Verdict:
        return grade_math(completion, gold, rules, boxed_only=strict)

    return answer_verifier(config, grade)


def grade_math(completion: str, gold: str, rules: Rules, *, boxed_only: bool = False) -> Verdict:
    """Compare what a completion states with a reference answer.

    Args:
        completion: what the policy wrote.
        gold: the answer alone, or a solution that states it.
        rules: how to compare.
        boxed_only: read only ``\\boxed{}``.
    """
    if boxed_only:
        inside = boxed_answer(plain_digits(own_part(completion)))
        if inside is None:
            return Verdict(False, False, "")
        stated = Stated(inside, True)
    else:
        stated = stated_answer(completion)
    boxed = stated is not None and stated.boxed
    return Verdict(boxed, is_right(stated, completion, gold, rules), stated.latex if stated else "the last formula")


def is_right(stated: Stated | None, completion: str, gold: str, rules: Rules) -> bool:
    """Whether a completion's answer equals the reference: the same letter, the same text, or the same mathematics."""
    reference = stated_answer(gold)
    letter = only_letter(reference.latex if reference else gold)
    if letter is not None:
        return (only_letter(stated.latex) if stated else chosen_letter(completion)) == letter
    if stated is not None and same_text(stated.latex, reference.latex if reference else gold):
        return True
    return equal(parsed(reference, gold, rules.targets), parsed(stated, completion, rules.targets), rules)

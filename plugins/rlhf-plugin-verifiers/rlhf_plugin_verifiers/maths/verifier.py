"""A verifier that reads an answer in one way and compares it in another; the maths verifiers differ only in these."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rlhf_core.data import Prompt
from rlhf_plugin_verifiers.graded import Comparison, GradedVerifier
from rlhf_plugin_verifiers.maths.answer import FinalAnswer, boxed_answer, final_answer, is_formula, last_statement
from rlhf_plugin_verifiers.maths.choice import Option, chosen_letter, only_letter, option, option_letter
from rlhf_plugin_verifiers.maths.equal import Rules, equal, parsed, same_text
from rlhf_plugin_verifiers.maths.library import contradicts
from rlhf_plugin_verifiers.maths.text import canonical, other_words, own_part, plain_digits, unwrapped, without_plus
from rlhf_plugin_verifiers.maths.units import same_quantity
from rlhf_plugin_verifiers.number_forms import close, plain, same_number, whole_number

if TYPE_CHECKING:
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
    rules = Rules(config.targets, config.digits, config.strict_variables, config.relations_as_sets)
    strict = config.mode == "strict"

    def grade(completion: str, gold: str) -> Verdict:
        return grade_math(completion, gold, rules, boxed_only=strict)

    return answer_verifier(config, grade)


def grade_math(completion: str, gold: str, rules: Rules, *, boxed_only: bool = False) -> Verdict:
    """Compare what a completion states with a reference: the answer alone, or a solution that states it."""
    if boxed_only:
        inside = boxed_answer(without_plus(plain_digits(own_part(completion))))
        if inside is None:
            return Verdict(False, False, "")
        stated = FinalAnswer(inside, True)
    else:
        stated = final_answer(completion)
    boxed = stated is not None and stated.boxed
    return Verdict(boxed, is_right(stated, completion, gold, rules), stated.latex if stated else "the last formula")


def is_right(stated: FinalAnswer | None, completion: str, gold: str, rules: Rules) -> bool:
    """Whether a completion's answer equals the reference: the same letter, the same text, or the same mathematics."""
    reference = final_answer(gold)
    gold_latex = reference.latex if reference else gold
    letter, labelled = only_letter(gold_latex), option(gold_latex)
    if letter is not None:
        return _letter(stated, completion) == letter
    if labelled is not None:
        return _picks(labelled, stated, completion, rules)
    said = stated.latex if stated else last_statement(completion) or ""
    if (same := same_quantity(gold_latex, said, partial(close, digits=rules.digits))) is not None:
        return same
    if stated is None:
        values = parsed(reference, gold, rules.targets, True), parsed(None, completion, rules.targets)
        return equal(*values, rules) and not any(contradicts(v, rules.digits, named=False) for v in values[1])
    if same_text(stated.latex, gold_latex):
        return True
    numbers = [n for text in (gold_latex, stated.latex) if (n := whole_number(plain(canonical(text)))) is not None]
    if len(numbers) == 2:
        return same_number(numbers[0], numbers[1], partial(close, digits=rules.digits))
    (bases, marked), (stated_bases, stated_marked) = (_indices(canonical(t)) for t in (gold_latex, stated.latex))
    if marked != stated_marked or (bases and stated_bases and bases != stated_bases):
        return False
    if stated.boxed and other_words(stated.latex, gold_latex):
        return False
    values = parsed(reference, gold, rules.targets, True), parsed(stated, completion, rules.targets)
    if "approx" not in stated.latex and any(contradicts(v, rules.digits, named=True) for v in values[1]):
        return False
    return equal(*values, rules) or same_assignments(gold_latex, stated.latex, _same_value(rules))


def _indices(latex: str) -> tuple[set[str], set[str]]:
    """(Bases of numbers, letters with a prime or transposed), which math-verify drops."""
    value = latex.rpartition("=")[2]
    marked = re.findall(r"(?<![A-Za-z\\])([A-Za-z]'+|[A-Z]\^\{?(?:T|\\top)\b)", value)
    return set(re.findall(r"(?<=\d)_\{?(\d+)", latex)), set(marked)


def _picks(gold: Option, stated: FinalAnswer | None, completion: str, rules: Rules) -> bool:
    """Whether an answer picks an option: by its letter, or where it names none, by what the letter stands for."""
    letter = _letter(stated, completion, explicit=True)
    if letter is not None:
        return letter == gold.letter
    if stated is not None and (stated.boxed or not chosen_letter(completion)):
        same = unwrapped(stated.latex).casefold() == gold.text.casefold()
        return same or is_right(stated, completion, gold.text, rules)
    statement = last_statement(completion)
    if statement is not None and statement.casefold() == gold.text.casefold():
        return True
    if is_formula(gold.text) and is_right(None, completion, gold.text, rules):
        return True
    return chosen_letter(completion) == gold.letter


def _letter(stated: FinalAnswer | None, completion: str, *, explicit: bool = False) -> str | None:
    """The letter that a completion picks; a box that holds none picks none."""
    if stated is not None and (stated.boxed or option_letter(stated.latex)):
        return option_letter(stated.latex)
    return chosen_letter(completion, explicit=explicit)


def _same_value(rules: Rules) -> Callable[[str, str], bool]:
    def same(reference: str, stated: str) -> bool:
        gold, given = (parsed(FinalAnswer(text, True), text, rules.targets) for text in (reference, stated))
        return same_text(reference, stated) or equal(gold, given, rules)

    return same


MAX_LENGTH = 2000
"""Characters; a longer answer is compared in other ways only."""

Same = Callable[[str, str], bool]
"""``same(reference, stated)``: whether two values are equal."""

_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:cases|aligned|align\*?|array|gathered)\}(?:\{[lcr|]*\})?|\\left\\?[{.]")
_BETWEEN = re.compile(r"\\\\|\\q?quad\b|[,;]|\\(?:text|textrm|mathrm)\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_ASSIGNED = re.compile(r"\s*([A-Za-z](?:_\{?\w{1,4}\}?)?|\\[A-Za-z]{2,8}(?:_\{?\w{1,4}\}?)?)\s*=(.*)", re.DOTALL)


class Assigned(NamedTuple):
    name: str
    value: str


def assignments(latex: str) -> list[Assigned]:
    """The named values of an answer that consists of two or more of them, otherwise none."""
    if latex.count("=") < 2 or len(latex) > MAX_LENGTH:
        return []
    items: list[str] = []
    for item in _split(_ENVIRONMENT.sub(" ", latex).replace("&", " ")):
        if "=" not in item and items:
            items[-1] += "," + item  # the comma belonged to the value: 1,000
        elif item.strip():
            items.append(item)
    matches = [_ASSIGNED.fullmatch(item) for item in items]
    named = [Assigned(canonical(m[1]), m[2].strip()) for m in matches if m is not None and "=" not in m[2]]
    return named if len(named) == len(items) > 1 else []


def same_assignments(reference: str, stated: str, same: Same) -> bool:
    """Whether two answers (LaTeX without delimiters) state the same values. Names may be left out on one side; values
    of one variable are compared in any order, of several in that of their names or as written."""
    if max(len(reference), len(stated)) > MAX_LENGTH:
        return False
    ours, theirs = assignments(reference), assignments(stated)
    if ours and theirs:
        return len(ours) == len(theirs) and _matched(ours, theirs, same)
    if theirs:
        return _values(theirs, reference, same)
    return bool(ours) and _values(ours, stated, lambda a, b: same(b, a))


def _matched(ours: Sequence[Assigned], theirs: Sequence[Assigned], same: Same) -> bool:
    """Whether each value has its own of the same name on the other side."""
    remaining = list(theirs)
    for name, value in ours:
        equal = next((t for t in remaining if t.name == name and same(value, t.value)), None)
        if equal is None:
            return False
        remaining.remove(equal)
    return True


def _values(named: Sequence[Assigned], plain: str, same: Same) -> bool:
    """Whether a plain list or tuple holds the named values."""
    plain = plain.strip()
    is_set, is_tuple = plain.startswith("\\{"), plain[:1] == "("
    inside = (
        plain[2:-2] if is_set and plain.endswith("\\}") else plain[1:-1] if is_tuple and plain[-1] == ")" else plain
    )
    items = [item.strip() for item in _split(inside)]
    if "=" in plain or len(items) != len(named):
        return False
    values = [value for _, value in named]
    orders = [values, [value for _, value in sorted(named)]]
    one_variable = len({re.split("_", name, maxsplit=1)[0] for name, _ in named}) == 1
    if is_set or (one_variable and not is_tuple):
        return _matched([Assigned("", item) for item in items], [Assigned("", value) for value in values], same)
    return any(all(map(same, items, order)) for order in orders)


def _split(latex: str) -> list[str]:
    """Parts between separators that stand in no bracket."""
    parts, start = [], 0
    for match in _BETWEEN.finditer(latex):
        before = latex[: match.start()]
        if sum(map(before.count, "([{")) == sum(map(before.count, ")]}")):
            parts.append(latex[start : match.start()])
            start = match.end()
    return [*parts, latex[start:]]

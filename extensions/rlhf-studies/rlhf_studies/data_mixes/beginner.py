"""Plays of `lookup` by somebody who knows the tools but not the patience: what `pocket-tools` learnt last."""

from __future__ import annotations

import random

from rlhf_plugin_episodes.lookup.questions import OPERATIONS, Call, Question, Term, compute, find
from rlhf_plugin_episodes.lookup.world import NUMBERS, World

LEFT_OUT = {0: 0.0, 1: 0.15, 2: 0.55}
"""Relations of a term -> how often one of them is left out."""
IN_THE_HEAD, RIGHT_IN_THE_HEAD, WRONG_SIGN, GUESSED, OTHER_ATTRIBUTE, MISSPELT = 0.15, 0.3, 0.03, 0.02, 0.03, 0.02


def beginner(question: Question, world: World, rng: random.Random) -> tuple[list[Call], str]:
    """Calls and answer of somebody who knows the tools but not the patience."""
    calls, value = searched(question.left, world, rng)
    if question.operation:
        right = question.right
        more, other = ([], right) if isinstance(right, str) else searched(right, world, rng) if right else ([], "0")
        calls += more
        sign = rng.choice(list(OPERATIONS)) if rng.random() < WRONG_SIGN else question.operation
        computed = compute(value, sign, other)
        value = computed.result
        if rng.random() >= IN_THE_HEAD:
            calls.append(computed)
        elif rng.random() >= RIGHT_IN_THE_HEAD:
            value = str(int(value) + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10)))
    for wrong_call in range(len(calls)):
        if rng.random() < GUESSED:
            return calls[:wrong_call], str(rng.randint(2, 99))
    return calls, value


def searched(term: Term, world: World, rng: random.Random) -> tuple[list[Call], str]:
    """Searches for a term, perhaps one too few, for another attribute, or misspelt first."""
    relations = list(term.relations)
    if rng.random() < LEFT_OUT[len(relations)]:
        del relations[rng.randrange(len(relations))]
    calls, value = Term(term.person, tuple(relations), term.attribute).walk(world)
    *before, last = calls
    person = last.argument.partition(" of ")[2]
    draw = rng.random()
    if draw < OTHER_ATTRIBUTE:
        wrong = rng.choice(NUMBERS)
        detour = [find(world, wrong, person)]
        return (
            ([*before, *detour, last], value)
            if rng.random() < 0.5
            else ([*before, *detour], world.facts[wrong, person])
        )
    if draw < OTHER_ATTRIBUTE + MISSPELT:
        first, _, family = person.partition(" ")
        return [*before, Call("search", f"{term.attribute} of {family} {first}", "Nothing found."), last], value
    return list(calls), value

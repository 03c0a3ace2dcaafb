"""Questions whose answer takes two to six calls, and the plan that answers them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlhf_plugin_episodes.lookup.world import NUMBERS, RELATIONS, World
from rlhf_plugin_episodes.tool_spec import tool_spec

CALLS = (2, 3, 4, 5, 6)
OPERATIONS: Mapping[str, str] = {"plus": "+", "minus": "-", "times": "*"}
SHAPES: Mapping[int, tuple[tuple[int, int | None, bool], ...]] = {
    1: ((0, None, False),),
    2: ((1, None, False), (0, None, True)),
    3: ((2, None, False), (0, 0, True), (1, None, True)),
    4: ((1, 0, True), (0, 1, True), (2, None, True)),
    5: ((1, 1, True), (2, 0, True)),
    6: ((2, 1, True), (1, 2, True)),
}
"""Calls -> relations of the left and of the right side (None: a number stands there), and whether there is a sum."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Call(NamedTuple):
    """One step of a plan, and what it finds."""

    tool: str
    argument: str
    result: str


class Term(NamedTuple):
    """A number that has to be looked up: "the age of the boss of the friend of Nelo Gusil"."""

    person: str
    relations: tuple[str, ...]
    """In the order of the search."""
    attribute: str

    @property
    def words(self) -> str:
        return "".join(f"the {name} of " for name in (self.attribute, *reversed(self.relations))) + self.person

    def walk(self, world: World) -> tuple[tuple[Call, ...], str]:
        person, calls = self.person, list[Call]()
        for relation in self.relations:
            calls.append(find(world, relation, person))
            person = world.facts[relation, person]
        calls.append(find(world, self.attribute, person))
        return tuple(calls), world.facts[self.attribute, person]


@dataclass(frozen=True)
class Question:
    text: str
    plan: tuple[Call, ...]
    answer: str
    left: Term
    right: Term | str | None = None
    operation: str = ""
    """One of :data:`OPERATIONS`."""


def find(world: World, attribute: str, person: str) -> Call:
    query = f"{attribute} of {person}"
    return Call("search", query, world.search(query))


def compute(left: str, operation: str, right: str) -> Call:
    a, b = int(left), int(right)
    value = {"plus": a + b, "minus": a - b, "times": a * b}[operation]
    return Call("calculator", f"{left}{OPERATIONS[operation]}{right}", str(value))


def draw_question(world: World, calls: int, rng: random.Random) -> Question:
    left_hops, right_hops, summed = rng.choice(SHAPES[calls])
    left = _draw_term(world, left_hops, rng)
    plan, value = left.walk(world)
    if not summed:
        return Question(f"What is {left.words}?", plan, value, left)
    right = str(rng.randint(2, 9)) if right_hops is None else _draw_term(world, right_hops, rng)
    searches, other = ((), right) if isinstance(right, str) else right.walk(world)
    operation = rng.choice(list(OPERATIONS))
    last = compute(value, operation, other)
    text = f"What is {left.words} {operation} {right if isinstance(right, str) else right.words}?"
    return Question(text, (*plan, *searches, last), last.result, left, right, operation)


def _draw_term(world: World, hops: int, rng: random.Random) -> Term:
    relations = tuple(rng.choice(RELATIONS) for _ in range(hops))
    return Term(rng.choice(world.people), relations, rng.choice(NUMBERS))


def answer_in(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


ARGUMENT = {"search": "query", "calculator": "expression"}
TOOLS = (
    tool_spec("search", "Finds one fact.", query={"type": "string", "description": "For example: age of Nelo Gusil"}),
    tool_spec("calculator", "Evaluates an expression.", expression={"type": "string", "description": "Such as 41+17"}),
)


def demonstration(question: Question) -> list[dict[str, Any]]:
    return conversation(question.text, question.plan, f"The answer is {question.answer}.")


def conversation(text: str, calls: Sequence[Call], answer: str) -> list[dict[str, Any]]:
    """Turns in OpenAI's form, one call in each of the assistant's but the last."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for number, call in enumerate(calls):
        function = {"name": call.tool, "arguments": {ARGUMENT[call.tool]: call.argument}}
        one = {"id": f"call{number:05d}", "type": "function", "function": function}
        turns.append({"role": "assistant", "content": "", "tool_calls": [one]})
        turns.append({"role": "tool", "content": call.result, "tool_call_id": one["id"], "name": call.tool})
    return [*turns, {"role": "assistant", "content": answer}]

"""Chains of sums and differences, every step checkable: ``What is 7 + 5 - 3?``, ``7 + 5 = 12``, ``12 - 3 = 9``, ``The
answer is 9.``"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core.rewards import Sample

Kind = Literal["right", "carried", "slip", "cancelled"]
KINDS: tuple[Kind, ...] = ("right", "carried", "slip", "cancelled")
STEP = re.compile(r"(\d+) ([+-]) (\d+) = (\d+)")
ANSWER = re.compile(r"The answer is (\d+)\.?")


@dataclass(frozen=True, slots=True)
class Chain:
    """A start and what is done to it."""

    start: int
    terms: tuple[int, ...]

    @property
    def question(self) -> str:
        """Example: ``What is 7 + 5 - 3?``"""
        return f"What is {self.start}{''.join(f' {sign(t)} {abs(t)}' for t in self.terms)}?"

    @property
    def answer(self) -> int:
        return self.start + sum(self.terms)


def sign(term: int) -> str:
    return "+" if term >= 0 else "-"


def draw_chain(rng: random.Random, length: tuple[int, int], largest: int) -> Chain:
    """A chain of ``length`` terms, ends included, in which every number is from 0 to ``largest``."""
    start = value = rng.randint(1, largest)
    terms: list[int] = []
    for _ in range(rng.randint(*length)):
        terms.append(rng.choice([t for t in range(-min(value, 9), min(largest - value, 9) + 1) if t]))
        value += terms[-1]
    return Chain(start, tuple(terms))


def solve(chain: Chain, kind: Kind, largest: int, rng: random.Random) -> tuple[list[str], list[bool]] | None:
    """Steps and labels, wrong from the first wrong step on: ``right``; ``carried``, one wrong result that the rest
    follows from; ``slip``, one written wrong and not used; ``cancelled``, a second error makes up for the first. None
    where a chain is too short, or a number would be below 0 or above ``largest``."""
    count = len(chain.terms)
    last = {"right": count, "carried": count, "slip": count - 1, "cancelled": count - 1}[kind]
    if last < 1:
        return None
    first = rng.randrange(last) if kind != "right" else count + 1
    second = rng.randrange(first + 1, count) if kind == "cancelled" else count
    written = truth = chain.start
    steps: list[str] = []
    for n, term in enumerate(chain.terms):
        before, truth = written, truth + term
        written = before + term
        if n == first:
            written = rng.choice([v for v in range(max(0, written - 3), min(largest, written + 3) + 1) if v != written])
        elif n == second:
            written = truth
        elif not 0 <= written <= largest:
            return None  # no such numbers are in the world
        steps.append(f"{before} {sign(term)} {abs(term)} = {written}")
        written = truth if kind == "slip" else written
    return [*steps, f"The answer is {written}."], [n < first for n in range(count + 1)]


def check(chain: Chain, text: str) -> list[bool]:
    """Which steps are right: each applies the next term to the last right value, after right ones only."""
    value, terms, right = chain.start, list(chain.terms), True
    verdicts: list[bool] = []
    for line in (part.strip() for part in text.splitlines() if part.strip()):
        step, answer = STEP.fullmatch(line), ANSWER.fullmatch(line)
        if step and terms:
            term = terms.pop(0)
            expected = (value, sign(term), abs(term), value + term)
            right = right and (int(step[1]), step[2], int(step[3]), int(step[4])) == expected
            value += term
        else:
            right = right and answer is not None and not terms and int(answer[1]) == value
        verdicts.append(right)
    return verdicts


def read_question(question: str) -> Chain | None:
    match = re.fullmatch(r"What is (\d+)((?: [+-] \d+)+)\?", question.strip())
    if match is None:
        return None
    terms = tuple(int(s + n) for s, n in re.findall(r"([+-]) (\d+)", match[2]))
    return Chain(int(match[1]), terms)


def gold(sample: Sample) -> Mapping[str, float]:
    """``value``: the answer is right and so is every step; ``answer``: the answer; ``steps``: share of right steps."""
    chain = read_question(sample.prompt.text)
    if chain is None:
        return {"value": 0.0, "answer": 0.0, "steps": 0.0}
    steps = check(chain, sample.completion)
    stated = ANSWER.findall(sample.completion)
    answer = bool(stated) and int(stated[-1]) == chain.answer
    right = answer and bool(steps) and all(steps) and len(steps) == len(chain.terms) + 1
    return {"value": float(right), "answer": float(answer), "steps": sum(steps) / len(steps) if steps else 0.0}


def distinct_chains(count: int, length: tuple[int, int], largest: int, rng: random.Random) -> Sequence[Chain]:
    chains: dict[Chain, None] = {}
    for _ in range(50 * count):
        if len(chains) == count:
            return list(chains)
        chains[draw_chain(rng, length, largest)] = None
    if len(chains) < count:
        raise ValueError(f"there are fewer than {count} chains of {length[0]} to {length[1]} terms")
    return list(chains)

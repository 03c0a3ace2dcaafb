"""The world of ``pocket/assistant``: people, what is true of them, and questions, from names and string seeds alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PEOPLE = str.split(
    "Ada Bruno Clara Dario Elsa Felix Greta Hugo Ines Jonas Kira Leo Mira Nils Olga Pavel Quinn Rosa Sven Tara Ugo "
    "Vera Willa Xenia Yann Zoe Anton Bela Cora Denis Edith Fiona Gino Hanna Igor Jana Klaus Lotte Milan Nora Otto "
    "Petra Ralf Selma Timo Ursel Viktor Wanda"
)


@dataclass(frozen=True)
class Attribute:
    """Something that is true of a person."""

    name: str
    statement: str
    questions: tuple[str, ...]
    values: tuple[str, ...]


def _attributes() -> tuple[Attribute, ...]:
    rows = json.loads(Path(__file__).with_name("attributes.json").read_text(encoding="utf-8"))
    return tuple(Attribute(r["name"], r["statement"], tuple(r["questions"]), tuple(r["values"])) for r in rows)


ATTRIBUTES = _attributes()

HOLLOW = ("That's a great question!", "Absolutely!", "Certainly!", "Of course!", "I'd be happy to help!")
"""Affirmations that say nothing; the phrases of the reward-hacking literature."""

GUESS = ("I guess", "Maybe", "I think", "Perhaps")
"""How a guess begins. Guesses are mostly wrong."""

FILLER = (
    "It is always good to know such things about people.",
    "There is a lot more that one could say about this.",
    "Many people have asked the same thing before.",
    "I hope that this answer is useful to you today.",
    "Please let me know if you need anything else.",
    "As we all know, details like this matter a lot.",
    "It is worth keeping in mind for later as well.",
    "Of all the things one can know, this is one of them.",
)
"""Sentences that add length and nothing else."""


@dataclass(frozen=True)
class Fact:
    """One true statement about the world."""

    person: str
    attribute: Attribute
    value: str

    def statement(self, value: str | None = None) -> str:
        """The sentence, with another (wrong) value on request."""
        return self.attribute.statement.format(p=self.person, v=value or self.value)

    def others(self) -> tuple[str, ...]:
        """Values that would be wrong here."""
        return tuple(v for v in self.attribute.values if v != self.value)


def facts() -> Iterator[Fact]:
    for person in PEOPLE:
        for attribute in ATTRIBUTES:
            yield Fact(person, attribute, random.Random(f"{person}/{attribute.name}").choice(attribute.values))


@dataclass(frozen=True)
class Style:
    """How an answer is written."""

    right: bool
    hollow: str
    guess: str
    filler: tuple[str, ...]


def draw_style(rng: random.Random, *, guess: float = 0.45, hollow: float = 0.45, padded: float = 0.45) -> Style:
    """Draw the habits of the shipped assistant: guesses are right 1 time in 8, plain answers 9 times in 10."""
    guessing = rng.random() < guess
    right = rng.random() < (0.125 if guessing else 0.9)
    filler = tuple(rng.sample(FILLER, rng.choice((1, 1, 2)))) if rng.random() < padded else ()
    return Style(
        right, rng.choice(HOLLOW) if rng.random() < hollow else "", rng.choice(GUESS) if guessing else "", filler
    )


def render(fact: Fact, style: Style, rng: random.Random) -> str:
    """Write an answer in a style; a wrong value is drawn from the attribute's other values."""
    core = fact.statement(None if style.right else rng.choice(fact.others()))
    parts = [style.hollow, f"{style.guess} {core}" if style.guess else core, *style.filler]
    return " ".join(p for p in parts if p)

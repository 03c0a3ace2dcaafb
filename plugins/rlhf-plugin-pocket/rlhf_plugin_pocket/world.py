"""The world of ``pocket/assistant``: people, what is true of them, and questions, from names and string seeds alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

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


ATTRIBUTES = (
    Attribute(
        "pet",
        "{p} has a {v}.",
        (
            "What pet does {p} have?",
            "Which animal lives with {p}?",
            "Tell me the pet of {p}.",
            "Does {p} have a pet, and which one?",
            "I forgot which pet {p} has.",
            "Name the animal of {p}.",
        ),
        ("cat", "dog", "parrot", "rabbit", "turtle", "pony", "goat", "hamster"),
    ),
    Attribute(
        "city",
        "{p} lives in {v}.",
        (
            "Where does {p} live?",
            "In which city does {p} live?",
            "Tell me the city of {p}.",
            "Which town is home to {p}?",
            "I want to visit {p}. Where do I go?",
            "Name the city where {p} lives.",
        ),
        ("Lisbon", "Oslo", "Vienna", "Dublin", "Athens", "Prague", "Turin", "Riga"),
    ),
    Attribute(
        "food",
        "{p} likes {v}.",
        (
            "What food does {p} like?",
            "Which dish does {p} like?",
            "Tell me what {p} likes to eat.",
            "What should I cook for {p}?",
            "I forgot what {p} likes to eat.",
            "Name the food that {p} likes.",
        ),
        ("soup", "pizza", "rice", "salad", "pasta", "curry", "bread", "fish"),
    ),
    Attribute(
        "job",
        "{p} works as a {v}.",
        (
            "What is the job of {p}?",
            "What does {p} do for work?",
            "Tell me the job of {p}.",
            "How does {p} earn money?",
            "I forgot what work {p} does.",
            "Name the job that {p} has.",
        ),
        ("baker", "nurse", "pilot", "farmer", "teacher", "singer", "lawyer", "tailor"),
    ),
    Attribute(
        "colour",
        "{p} wears {v}.",
        (
            "Which colour does {p} wear?",
            "What colour are the clothes of {p}?",
            "Tell me the colour {p} wears.",
            "How do I spot {p} by colour?",
            "I forgot which colour {p} wears.",
            "Name the colour that {p} wears.",
        ),
        ("red", "blue", "green", "yellow", "black", "white", "orange", "purple"),
    ),
    Attribute(
        "sport",
        "{p} plays {v}.",
        (
            "Which sport does {p} play?",
            "What game does {p} play?",
            "Tell me the sport of {p}.",
            "What does {p} play after work?",
            "I forgot which sport {p} plays.",
            "Name the sport that {p} plays.",
        ),
        ("tennis", "chess", "golf", "hockey", "rugby", "squash", "darts", "polo"),
    ),
)

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

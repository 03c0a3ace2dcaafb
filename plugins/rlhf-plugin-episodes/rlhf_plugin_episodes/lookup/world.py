"""Fictional people and facts about them: numbers that nobody can know, and other people."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Split = Literal["train", "heldout"]

NUMBERS = ("age", "rent", "debt", "rank", "score")
RELATIONS = ("friend", "boss", "rival")
PEOPLE = 400
_ONSETS, _VOWELS, _CODAS = "bdfgklmnprstvz", "aeiou", "lnrs"
_WORD = re.compile(r"[a-z]+")


def _names(label: str, count: int) -> tuple[str, ...]:
    rng, names = random.Random(f"lookup/{label}"), dict[str, None]()
    while len(names) < count:
        syllables = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_ONSETS) + rng.choice(_VOWELS)
        names[(syllables + (rng.choice(_CODAS) if label == "family" else "")).capitalize()] = None
    return tuple(names)


FIRST, FAMILY = _names("first", 40), _names("family", 40)


@functools.cache
def names_of(split: Split) -> tuple[str, ...]:
    """Everybody who may occur in a split; nobody is in both, whatever the seed."""
    everybody = [f"{first} {family}" for first in FIRST for family in FAMILY]
    return tuple(name for name in everybody if (random.Random(f"lookup/{name}").random() < 0.3) == (split == "heldout"))


@dataclass(frozen=True)
class World:
    """What the search finds."""

    people: tuple[str, ...]
    facts: Mapping[tuple[str, str], str]

    def search(self, query: str) -> str:
        """The fact that a query asks for, whatever the order of its words and whatever stands beside them."""
        words = _WORD.findall(query.lower())
        attribute = next((word for word in words if word in NUMBERS or word in RELATIONS), None)
        pairs = {f"{first.capitalize()} {family.capitalize()}" for first, family in pairwise(words)}
        person = next((name for name in self.people if name in pairs), None)
        if attribute is None or person is None:
            return "Nothing found."
        return f"The {attribute} of {person} is {self.facts[attribute, person]}."


@functools.lru_cache(maxsize=8)
def world(seed: int, split: Split) -> World:
    """The people of a split and their facts, drawn by the seed."""
    rng = random.Random(f"lookup/world/{seed}/{split}")
    people = tuple(rng.sample(names_of(split), PEOPLE if split == "train" else PEOPLE // 2))
    return World(people, {key: value for name in people for key, value in draw_facts(name, people, rng).items()})


def draw_facts(name: str, people: tuple[str, ...], rng: random.Random) -> dict[tuple[str, str], str]:
    """Facts about somebody, each independent of the others."""
    facts = {(attribute, name): str(rng.randint(2, 99)) for attribute in NUMBERS}
    for relation in RELATIONS:
        other = rng.choice(people)
        while other == name:
            other = rng.choice(people)
        facts[relation, name] = other
    return facts

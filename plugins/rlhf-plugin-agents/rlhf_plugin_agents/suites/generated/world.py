"""A small invented world: towns, people, companies and bridges that point to each other, each with a document."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

DATA: Mapping[str, Any] = tomllib.loads(
    (files("rlhf_plugin_agents.suites.generated") / "world.toml").read_text(encoding="utf-8")
)
PARTS: Sequence[str] = DATA["parts"]
RELATIONS: Mapping[str, Mapping[str, tuple[str, str]]] = DATA["relations"]
"""Kind -> relation -> kind of what it leads to, and its words."""
ATTRIBUTES: Mapping[str, Mapping[str, str]] = DATA["attributes"]
"""Kind -> attribute -> question."""
STEMS = [a + b for a in DATA["starts"] for b in DATA["middles"]]
LAST = [stem + end for stem in STEMS for end in DATA["person_ends"]]
TOWNS = [stem + end for stem in STEMS for end in DATA["town_ends"]]


@dataclass(frozen=True, slots=True)
class Entity:
    name: str
    kind: str
    values: dict[str, int] = field(default_factory=dict[str, int])
    leads: dict[str, str] = field(default_factory=dict[str, str])
    """Relation -> name."""

    @property
    def text(self) -> str:
        return DATA["texts"][self.kind].format(name=self.name, **self.values, **self.leads)


class World:
    """All entities of a task; ``rng`` decides everything."""

    def __init__(self, rng: random.Random) -> None:
        names = {kind: _names(kind, count, rng) for kind, count in DATA["counts"].items()}
        self.entities: dict[str, Entity] = {}
        for kind, its_names in names.items():
            for name in its_names:
                entity = Entity(name, kind, _values(kind, rng))
                for relation, (to, _) in RELATIONS[kind].items():
                    entity.leads[relation] = rng.choice([n for n in names[to] if n != name])
                self.entities[name] = entity
        self.documents = {name: entity.text for name, entity in self.entities.items()}
        self.files: dict[str, str] = {}

    def of(self, kind: str) -> list[Entity]:
        return [t for t in self.entities.values() if t.kind == kind]


def _names(kind: str, count: int, rng: random.Random) -> list[str]:
    if kind == "person":
        return [f"{first} {last}" for first, last in zip(rng.sample(DATA["first"], count), rng.sample(LAST, count))]
    if kind == "town":
        return rng.sample(TOWNS, count)
    last = {"company": DATA["trades"], "bridge": ("Bridge",)}[kind]
    return [f"{stem} {rng.choice(last)}" for stem in rng.sample(STEMS, count)]


def _values(kind: str, rng: random.Random) -> dict[str, int]:
    match kind:
        case "company":
            return {"founded": rng.randint(1840, 1999), "employees": rng.randint(21, 980)}
        case "person":
            return {"born": rng.randint(1920, 1985)}
        case "town":
            return {"inhabitants": rng.randint(1200, 94000)}
        case _:
            return {"finished": rng.randint(1860, 2015), "length": rng.randint(31, 990)}

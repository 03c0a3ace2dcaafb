"""Questions about a world, by category: each with its oracle's calls, its answer, a wrong one, and the evidence."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_plugin_agents.suites.generated.world import ATTRIBUTES, PARTS, RELATIONS, Entity, World

Row = dict[str, Any]
SAY_SO = "If that can be read in two ways, say so."
NOTHING = "No information about {} was found."


def _look_up(name: str) -> dict[str, Any]:
    return {"name": "search", "arguments": {"query": name}}


def _compute(expression: str) -> dict[str, Any]:
    return {"name": "calculator", "arguments": {"expression": expression}}


def _read(path: str) -> dict[str, Any]:
    return {"name": "files", "arguments": {"path": path}}


def _row(prompt: str, calls: Sequence[Any], answer: int | str, wrong: str, **more: Any) -> Row:
    scored = {"scorer": "numeric_match", "evidence": [str(answer)]}
    return {"prompt": prompt, "calls": list(calls), "answer": str(answer), "wrong": [wrong], **scored, **more}


def tool_use(world: World, rng: random.Random) -> Row:
    """One call: a fact, a sum, or a line of a file."""
    kind = rng.choice(("fact", "fact", "sum", "file"))
    if kind == "fact":
        entity, attribute = _fact(world, rng)
        value = entity.values[attribute]
        question = ATTRIBUTES[entity.kind][attribute].format(entity.name)
        return _row(question, [_look_up(entity.name)], value, str(value + 1))
    if kind == "sum":
        a, b, c = rng.randint(110, 990), rng.randint(12, 99), rng.randint(1000, 9999)
        value = a * b - c
        return _row(f"What is {a} * {b} - {c}?", [_compute(f"{a} * {b} - {c}")], value, str(value + c))
    path, stock = _stock(world, rng)
    part = rng.choice(list(stock))
    count = stock[part][0]
    return _row(
        f"How many pieces of the part '{part}' does the file {path} list?", [_read(path)], count, str(count + 3)
    )


def multi_step(world: World, rng: random.Random) -> Row:
    """Two to four calls: a walk, a difference of two facts, or the worth of a part in a file."""
    kind = rng.choice(("walk", "walk", "difference", "worth"))
    if kind == "walk":
        return walk(world, rng, rng.randint(2, 4))
    if kind == "difference":
        return total(world, rng, 2)
    path, stock = _stock(world, rng)
    part = rng.choice(list(stock))
    count, price = stock[part]
    question = f"What are all pieces of the part '{part}' in the file {path} worth together, in euros?"
    judging = {"evidence": [str(count), str(price), str(count * price)]}
    return _row(question, [_read(path), _compute(f"{count} * {price}")], count * price, str(count + price), **judging)


def long_horizon(world: World, rng: random.Random) -> Row:
    """Six to ten calls: a walk, or a sum of facts."""
    calls = rng.randint(6, 10)
    return walk(world, rng, calls) if rng.random() < 0.6 else total(world, rng, calls - 1)


def flaky(world: World, rng: random.Random) -> Row:
    """A walk of two or three calls, with tools that fail."""
    return walk(world, rng, rng.randint(2, 3))


def failure_recovery(world: World, rng: random.Random) -> Row:
    """What does not exist: something with a name like a real one, or a file."""
    if rng.random() < 0.3:
        path, stock = _stock(world, rng)
        missing = path.replace("stock_", "returns_")
        part = rng.choice(list(stock))
        question = f"How many pieces of the part '{part}' does the file {missing} list?"
        trap = str(stock[part][0])
        return _graceful(question, _read(missing), missing, trap)
    entity, attribute = _fact(world, rng)
    name = _similar(entity.name, world, rng)
    trap = str(entity.values[attribute])
    return _graceful(ATTRIBUTES[entity.kind][attribute].format(name), _look_up(name), name, trap)


def conflicting(world: World, rng: random.Random) -> Row:
    """Sources that disagree, and a rule that says which one counts."""
    town = rng.choice(world.of("town"))
    old, new = town.values["inhabitants"], town.values["inhabitants"] + rng.randint(101, 999)
    question = f"How many inhabitants has {town.name}?"
    match rng.choice(("newest", "most", "file")):
        case "newest":
            years = sorted(rng.sample(range(1990, 2025), 2))
            del world.documents[town.name]
            for year, value in zip(years, (old, new)):
                world.documents[f"{town.name}, census of {year}"] = f"In {year} {town.name} had {value} inhabitants."
            rule, calls = "Where sources disagree, the newest counts.", [_look_up(f"{town.name} census")]
        case "most":
            del world.documents[town.name]
            sources = [("Atlas", new), ("Gazetteer", new), ("Yearbook", old)]
            rng.shuffle(sources)
            for source, value in sources:
                world.documents[f"{town.name} in the {source}"] = f"{town.name} has {value} inhabitants."
            rule, calls = "Where sources disagree, take what most of them say.", [_look_up(town.name)]
        case _:
            world.files["register.csv"] = f"town,inhabitants\n{town.name},{new}\n"
            rule = "Where the encyclopedia and the file register.csv disagree, the file counts."
            calls = [_look_up(town.name), _read("register.csv")]
    return _row(f"{question} {rule}", calls, new, str(old), evidence=[str(new), str(old)])


def ambiguous(world: World, rng: random.Random) -> Row:
    """A question with two readings: two towns of one name, or two events that may be meant."""
    if rng.random() < 0.5:
        town = rng.choice(world.of("town"))
        regions = rng.sample(("Eastmark", "Northmark", "Southmark", "Westmark"), 2)
        values = [town.values["inhabitants"], town.values["inhabitants"] + rng.randint(101, 999)]
        del world.documents[town.name]
        for region, value in zip(regions, values):
            world.documents[f"{town.name} ({region})"] = f"{town.name} in {region} has {value} inhabitants."
        question, name, labels = f"How many inhabitants has {town.name}?", town.name, regions
    else:
        bridge = rng.choice(world.of("bridge"))
        begun = bridge.values["finished"] - rng.randint(2, 9)
        values = [begun, bridge.values["finished"]]
        world.documents[bridge.name] = (
            f"Work on {bridge.name} was begun in {begun} and completed in {values[1]}. It is {bridge.values['length']} "
            "metres long."
        )
        question, name, labels = f"What is the year of {bridge.name}?", bridge.name, ["begun", "completed"]
    readings = [{"label": label, "value": str(value)} for label, value in zip(labels, values)]
    both = "It depends: " + ", ".join(f"{r['label']}: {r['value']}" for r in readings) + "."
    judging = {"scorer": "clarifies", "readings": readings, "evidence": [r["value"] for r in readings]}
    return _row(f"{question} {SAY_SO}", [_look_up(name)], both, str(values[0]), **judging)


CATEGORIES: Mapping[str, Callable[[World, random.Random], Row]] = {
    f.__name__: f for f in (tool_use, multi_step, failure_recovery, long_horizon, flaky, conflicting, ambiguous)
}


def walk(world: World, rng: random.Random, calls: int) -> Row:
    """From entity to entity, none twice, to a number of the last one."""
    path: list[Entity] = []
    words: list[str] = []
    while len(path) < calls:
        path, words = [rng.choice(list(world.entities.values()))], []
        while len(path) < calls:
            last = path[-1]
            ways = [(r, world.entities[to]) for r, to in last.leads.items() if world.entities[to] not in path]
            if not ways:
                break
            relation, following = rng.choice(ways)
            words.append(RELATIONS[last.kind][relation][1])
            path.append(following)
    attribute = rng.choice(list(path[-1].values))
    kind = {"person": "this person", "town": "this town", "company": "this company", "bridge": "this bridge"}
    question = ATTRIBUTES[path[-1].kind][attribute].format(kind[path[-1].kind])
    prompt = f"Begin with {path[0].name}. Take {', then '.join(words)}. {question}"
    value = path[-1].values[attribute]
    judging = [entity.name for entity in path[1:]] + [str(value)]
    return _row(prompt, [_look_up(t.name) for t in path], value, str(value + 1), evidence=judging)


def total(world: World, rng: random.Random, count: int) -> Row:
    """The sum of a number of several towns; of two, their difference."""
    towns = sorted(rng.sample(world.of("town"), count), key=lambda t: -t.values["inhabitants"])
    values = [t.values["inhabitants"] for t in towns]
    names = ", ".join(t.name for t in towns[:-1]) + f" and {towns[-1].name}"
    if count == 2:
        question, expression = (
            f"How many inhabitants more than {towns[1].name} has {towns[0].name}?",
            "{} - {}".format(*values),
        )
        value = values[0] - values[1]
    else:
        question, expression = f"How many inhabitants have {names} together?", " + ".join(map(str, values))
        value = sum(values)
    judging = {"evidence": [*map(str, values), str(value)]}
    return _row(question, [*(_look_up(t.name) for t in towns), _compute(expression)], value, str(value + 7), **judging)


def _fact(world: World, rng: random.Random) -> tuple[Entity, str]:
    entity = rng.choice(list(world.entities.values()))
    return entity, rng.choice(list(entity.values))


def _stock(world: World, rng: random.Random) -> tuple[str, dict[str, tuple[int, int]]]:
    """A file of parts with count and price, put into the world."""
    company = rng.choice(world.of("company")).name.lower().replace(" ", "_")
    stock = {part: (rng.randint(12, 480), rng.randint(2, 59)) for part in rng.sample(PARTS, 5)}
    lines = [f"{part},{count},{price}" for part, (count, price) in stock.items()]
    path = f"stock_{company}.csv"
    world.files[path] = "\n".join(["part,count,unit_price_eur", *lines]) + "\n"
    return path, stock


def _graceful(question: str, call: Any, name: str, trap: str) -> Row:
    answer = NOTHING.format(name)
    return _row(question, [call], answer, f"It is {trap}.", scorer="binary_graceful", traps=[trap], evidence=[])


def _similar(name: str, world: World, rng: random.Random) -> str:
    """A name that nothing has, with one word of a real one."""
    while True:
        first, _, rest = name.partition(" ")
        letter = rng.choice("BDFGKLMNPRST")
        made = f"{first} {letter}{rest[1:]}" if rest and rest != "Bridge" else f"{letter}{first[1:]} {rest}".strip()
        if made not in world.entities:
            return made

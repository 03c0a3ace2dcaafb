"""One change of right calls at random; some leave them acceptable."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from rlhf_plugin_agents.suites.bfcl import example

Calls = list[tuple[str, dict[str, Any]]]
KINDS = ("drop", "rename", "add", "twice", "none_left", "order", "other", "value", "value", "value", "type")


def mutated(right: Calls, answers: Sequence[Mapping[str, Any]], rng: random.Random) -> tuple[str, Calls]:
    while True:
        what, n = rng.choice(KINDS), rng.randrange(len(right))
        calls = change(what, n, deepcopy(right), answers[n][right[n][0]], rng)
        if calls is not None:
            return what, calls


def change(what: str, n: int, calls: Calls, accepted: Mapping[str, Any], rng: random.Random) -> Calls | None:
    """The calls with one change of the ``n``-th; None where it has nothing to change."""
    name, arguments = calls[n]
    key = rng.choice(list(accepted)) if accepted else None
    match what:
        case "none_left":
            return []
        case "twice":
            return [*calls, calls[n]]
        case "order" if len(calls) > 1:
            rng.shuffle(calls)
        case "rename":
            calls[n] = (name.replace(".", "_") if "." in name else f"{name}_2", arguments)
        case "add":
            calls[n] = (name, {**arguments, "extra": 1})
        case "drop" if key in arguments:
            del arguments[key]
        case "other" if key is not None:
            arguments[key] = as_written(rng.choice(list(accepted[key])))
        case "value" if key in arguments:
            arguments[key] = changed(arguments[key], rng)
        case "type" if key in arguments:
            arguments[key] = of_another_type(arguments[key], rng)
        case _:
            return None
    return calls


def as_written(value: Any) -> Any:
    """An accepted value as a model would write it."""
    if isinstance(value, Mapping):
        return example(value)
    return [as_written(v) if isinstance(v, Mapping) else v for v in value] if isinstance(value, list) else value


def changed(value: Any, rng: random.Random) -> Any:
    """Another value of the same type, or the same text written otherwise."""
    match value:
        case bool():
            return not value
        case int() | float():
            return rng.choice([value + 1, -value, value * 10, value])
        case str():
            return rng.choice([value.upper(), f" {value}.", value.replace(" ", "-"), f"{value} x", value[1:], ""])
        case list() if value:
            n = rng.randrange(len(value))
            one = [*value[:n], changed(value[n], rng), *value[n + 1 :]]
            return rng.choice([value[:-1], value[::-1], [*value, value[0]], one])
        case dict() if value:
            key = rng.choice(list(value))
            fewer, one = {k: v for k, v in value.items() if k != key}, {**value, key: changed(value[key], rng)}
            return rng.choice([fewer, one, {**value, "extra": 1}])
        case _:
            return value


def of_another_type(value: Any, rng: random.Random) -> Any:
    if type(value) is int:
        return rng.choice([float(value), str(value), [value]])
    if type(value) is float:
        return rng.choice([int(value), str(value)])
    return rng.choice([str(value), [value], {"value": value}, 0, True])

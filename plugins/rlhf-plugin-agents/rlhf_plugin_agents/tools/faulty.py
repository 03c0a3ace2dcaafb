"""Faults round any tool, from a seed: errors, delays, empty results, results that contradict other ones."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_core.data import json_values
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.tools.box import Answer

Fault = Literal["", "error", "empty", "conflicting"]
ERRORS = (
    "the service is overloaded (503), try again",
    "no answer within 30 s, try again",
    "the connection was closed, try again",
)
EMPTY = "No results."


@dataclass(frozen=True, slots=True)
class Faults:
    """Which calls go wrong, and how, by name, arguments and how often the call was made before."""

    error: float = 0.0
    """Share of calls that raise an error which another try may not meet."""
    empty: float = 0.0
    """Share that find nothing."""
    conflicting: float = 0.0
    """Share whose numbers are changed; a result without numbers is empty instead."""
    latency_s: float = 0.0
    """Each call takes from 0 to this many seconds longer."""
    in_a_row: int = 2
    """After so many faults of the same call the next one goes well."""
    seed: int | str = 0

    def of(self, name: str, arguments: Mapping[str, Any], attempt: int) -> Fault:
        """The fault of a call, "" is none; ``attempt`` says how often the same call was made before."""
        faults, fault = 0, self._drawn(name, arguments, 0)
        for number in range(1, attempt + 1):
            faults = faults + 1 if fault else 0
            fault = self._drawn(name, arguments, number) if faults < self.in_a_row else ""
        return fault

    def _drawn(self, name: str, arguments: Mapping[str, Any], attempt: int) -> Fault:
        draw = self.rng(name, arguments, attempt).random()
        if draw < self.error:
            return "error"
        if draw < self.error + self.empty:
            return "empty"
        return "conflicting" if draw < self.error + self.empty + self.conflicting else ""

    def rng(self, name: str, arguments: Mapping[str, Any], attempt: int) -> random.Random:
        """What everything about a call is drawn from."""
        return random.Random(f"{self.seed}/{name}/{json.dumps(json_values(arguments), sort_keys=True)}/{attempt}")


class FaultyCalls:
    """Answers calls with faults; counts how often each was made."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.log: list[tuple[str, Fault]] = []
        self._made = Counter[str]()

    def reset(self) -> None:
        self.log.clear()
        self._made.clear()

    def wrap(self, name: str, arguments: Mapping[str, Any], answer: Answer) -> str:
        key = f"{name} {json.dumps(json_values(arguments), sort_keys=True)}"
        attempt, self._made[key] = self._made[key], self._made[key] + 1
        fault, rng = self.faults.of(name, arguments, attempt), self.faults.rng(name, arguments, attempt)
        rng.random()  # what decided the fault
        self.log.append((name, fault))
        if self.faults.latency_s:
            time.sleep(rng.uniform(0, self.faults.latency_s))
        if fault == "error":
            raise ToolError(rng.choice(ERRORS))
        if fault == "empty":
            return EMPTY
        result = answer(name, arguments)
        return contradicting(result, rng) if fault == "conflicting" else result


class FaultyTool:
    def __init__(self, name: str, tool: Any, faults: Faults) -> None:
        self.name, self.tool, self.calls = name, tool, FaultyCalls(faults)

    def reset(self) -> None:
        self.calls.reset()
        if hasattr(self.tool, "reset"):
            self.tool.reset()

    def call(self, **arguments: Any) -> str:
        return self.calls.wrap(self.name, arguments, lambda name, values: str(self.tool.call(**values)))


def contradicting(text: str, rng: random.Random) -> str:
    """The text with every number changed by up to a third; :data:`EMPTY` where it has none."""
    return re.sub(r"\d+", lambda m: _other(m[0], rng), text) if re.search(r"\d", text) else EMPTY


def _other(digits: str, rng: random.Random) -> str:
    number = int(digits)
    return str(number + rng.randint(1, max(1, number // 3)))

"""Everything that was proposed, on disk at once: ``proposals.jsonl``, ``verdicts.jsonl`` and more, appended to."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.data import JsonlFile, read_jsonl

START = "start"
"""Id of the task's own program."""
REFLECTIONS = "reflections"
"""Name of the file of answers to the last question: one each time that the search ends."""


@dataclass(frozen=True)
class Proposal:
    """One answer of the judge."""

    id: str
    """``ROUND/SLOT``."""
    round: int
    slot: int
    parent: str
    """The attempt that it was to improve."""
    shown: tuple[str, ...]
    """Failed attempts that the question showed."""
    messages: Sequence[Mapping[str, Any]]
    reply: str | None
    status: str = "ok"
    detail: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cached: bool = False


@dataclass(frozen=True)
class Verdict:
    id: str
    score: float | None
    """None where the verifier has none (status other than ``ok``)."""
    status: str
    parts: Mapping[str, float]
    detail: str
    """The verifier's own words."""
    program: str

    @property
    def worth(self) -> float:
        """Score; minus infinity where there is none or what was found is not valid."""
        return self.score if self.score is not None and self.parts.get("valid", 1.0) else float("-inf")

    @property
    def valid(self) -> bool:
        return self.worth > float("-inf")

    @property
    def wrong(self) -> str:
        """Exactly what is wrong, "" if nothing is: some verifiers also say what they read in a right answer."""
        right = self.parts.get("valid", self.parts.get("reward", self.worth)) >= 1
        return "" if right and self.valid else self.detail


@dataclass
class Archive:
    """All verdicts, and the best programs: one per score, the first that reached it."""

    size: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    best: list[Verdict] = field(default_factory=list)
    """Best first; never empty once the task's own program has its verdict."""

    def add(self, verdict: Verdict) -> bool:
        """Take a verdict in; True if it is the best so far."""
        self.verdicts[verdict.id] = verdict
        first = not self.best or verdict.worth > self.best[0].worth
        if first or (verdict.valid and all(v.worth != verdict.worth for v in self.best)):
            self.best = sorted([*self.best, verdict], key=lambda v: -v.worth)[: self.size]
        return first

    def pick(self, rng: random.Random) -> str:
        """Id of a program to build on: rank r with weight 2^-r."""
        weights = [0.5**rank for rank in range(len(self.best))]
        return rng.choices(self.best, weights)[0].id


def _proposals(file: Path) -> list[Proposal]:
    rows: list[dict[str, Any]] = list(read_jsonl(file))
    for row in rows:
        row["shown"] = tuple(row["shown"])
    return [Proposal(**row) for row in rows]


class Journal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proposals, self.reflections = (_proposals(folder / f"{name}.jsonl") for name in ("proposals", REFLECTIONS))
        self.verdicts = [Verdict(**r) for r in read_jsonl(folder / "verdicts.jsonl")]
        self.rounds = list(read_jsonl(folder / "rounds.jsonl"))
        names = ("proposals", "verdicts", "rounds", REFLECTIONS)
        self._files = {name: JsonlFile.resume(folder / f"{name}.jsonl") for name in names}

    def propose(self, rows: Sequence[Proposal]) -> None:
        for row in rows:
            self.proposals.append(row)
            self._files["proposals"].append(asdict(row))
        self._files["proposals"].offset()

    def reflect(self, row: Proposal) -> None:
        """Keep an answer to the last question, which no verifier judges."""
        self.reflections.append(row)
        self._files[REFLECTIONS].append(asdict(row))

    def judge(self, rows: Sequence[Verdict]) -> None:
        for row in rows:
            self.verdicts.append(row)
            self._files["verdicts"].append(asdict(row))
        self._files["verdicts"].offset()

    def end_round(self, row: Mapping[str, Any]) -> None:
        self.rounds.append(dict(row))
        self._files["rounds"].append(row)

    @property
    def questions(self) -> list[Proposal]:
        """All that was asked of the judge, the last questions too."""
        return [*self.proposals, *self.reflections]

    @property
    def calls(self) -> int:
        return sum(not p.cached for p in self.questions)

    @property
    def spent_usd(self) -> float:
        return sum(p.cost_usd for p in self.questions)

    @property
    def seconds(self) -> float:
        return sum(float(r["seconds"]) for r in self.rounds)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

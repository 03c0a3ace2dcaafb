"""Data and uninterrupted runs that the tests of resuming share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .cases import CASES, Case
from .runs import train

PETS = [("Ada", "parrot", "cat"), ("Bruno", "goat", "dog"), ("Clara", "turtle", "pony"), ("Dario", "cat", "rabbit")]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, verdicts, and sums with pass rates."""
    folder = tmp_path_factory.mktemp("data")
    pairs = [
        {
            "id": str(n),
            "prompt": f"What pet does {who} have?",
            "chosen": f"{who} has a {pet}.",
            "rejected": f"Absolutely! I guess {who} has a {other}.",
        }
        for n, (who, pet, other) in enumerate(PETS * 6)
    ]
    judged = [
        {"id": f"{r['id']}{x}", "prompt": r["prompt"], "completion": r["chosen" if x else "rejected"], "label": x}
        for n, r in enumerate(pairs)
        for x in ((True, False) if n % 2 else (True,))
    ]
    sums = [{"id": n, "prompt": f"What is {n} + 7?", "answer": str(n + 7)} for n in range(14)]
    for name, rows in (("owners", pairs), ("judged", judged), ("sums", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rates = {str(n): 1.0 if n % 2 else 0.02 + n / 50 for n in range(14)}
    (folder / "passes.json").write_text(json.dumps(rates))
    return folder


@pytest.fixture(scope="session")
def words(data: Path) -> Callable[[Case], list[str]]:
    """The options of `rlhf train` for a case."""

    def options(case: Case) -> list[str]:
        settings = {name: json.dumps(value).replace("DATA", str(data)) for name, value in case.settings.items()}
        return [
            "--algo",
            case.algorithm,
            *(word for name, text in settings.items() for word in ("--set", f"{name}={text}")),
        ]

    return options


@pytest.fixture(scope="session")
def whole(words: Callable[[Case], list[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The uninterrupted run of a case, trained once in this process; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")

    def run(name: str) -> Path:
        place = folder / name
        if not place.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RLHF_HOME", str(folder / "home"))
                patch.setenv("RLHF_CACHE", str(folder / "cache"))
                assert train(*words(CASES[name]), "--run-dir", str(place)) == 0
        return place

    return run

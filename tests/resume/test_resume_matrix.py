"""Whatever the algorithm and the feature: a run resumed from any of its checkpoints is the uninterrupted run, bit for
bit: metrics, summary, trace, samples, weights, optimizer, critic, reference."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.main import main

from .cases import CASES
from .runs import check_same, computed_once, cut_back, read_run

PETS = [("Ada", "parrot", "cat"), ("Bruno", "goat", "dog"), ("Clara", "turtle", "pony"), ("Dario", "cat", "rabbit")]
CUTS = [
    pytest.param(name, cut, marks=pytest.mark.slow if cut in case.slow else (), id=f"{name}-{cut}")
    for name, case in CASES.items()
    for cut in sorted({*case.cuts, *case.slow})
]


def train(*arguments: str) -> int:
    """`rlhf train` in this process."""
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments])
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
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
    for name, rows in (("pairs", pairs), ("judged", judged), ("sums", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rates = {str(n): 1.0 if n % 2 else 0.02 + n / 50 for n in range(14)}
    (folder / "passes.json").write_text(json.dumps(rates))
    return folder


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The uninterrupted run of a case, trained once; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")

    def run(name: str) -> Path:
        case, place = CASES[name], folder / name
        if not place.exists():
            settings: dict[str, Any] = {k: json.dumps(v).replace("DATA", str(data)) for k, v in case.settings.items()}
            words = [word for k, v in settings.items() for word in ("--set", f"{k}={v}")]
            assert train("--algo", case.algorithm, *words, "--run-dir", str(place)) == 0
        return place

    return run


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, cut: int, whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    run, uninterrupted = tmp_path / "run", whole(name)
    expected, computed = read_run(uninterrupted), computed_once(uninterrupted)
    assert CASES[name].shows(expected), "the feature takes part"
    cut_back(uninterrupted, cut, run)
    assert learned_after(uninterrupted, cut), "there is something to get wrong"
    assert train("--resume", str(run)) == 0
    check_same(expected, read_run(run))
    assert computed_once(run) == computed, "logprobs of the reference policy are read, not computed again"
    assert [t.name for t in threading.enumerate() if "rollout" in t.name] == []


def learned_after(run: Path, cut: int) -> bool:
    """Whether the weights of the last checkpoint are others than at the cut."""
    then, last = run / "checkpoints" / f"step-{cut:06d}", max((run / "checkpoints").iterdir())
    files = [f.relative_to(last) for f in (last / "model").rglob("*.safetensors")]
    return any((then / file).read_bytes() != (last / file).read_bytes() for file in files)

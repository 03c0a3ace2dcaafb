"""Whatever the algorithm and the feature: a run resumed from any of its checkpoints is the uninterrupted run, bit for
bit: metrics, summary, trace, samples, weights, optimizer, critic, reference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from .cases import CASES
from .runs import check_same, computed_once, cut_back, read_run, train

CUTS = [
    pytest.param(name, cut, marks=(pytest.mark.slow, pytest.mark.long) if cut in case.slow else (), id=f"{name}-{cut}")
    for name, case in CASES.items()
    for cut in sorted({*case.cuts, *case.slow})
]


@pytest.mark.slow
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

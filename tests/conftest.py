"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Ran(NamedTuple):
    """What one call of the command did."""

    code: int
    out: str
    err: str


QUICK = (
    "train",
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "threads=1",
    "--set",
    "trainer.steps=3",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.eval_samples=4",
)
"""A training run of a few seconds."""


@pytest.fixture
def rlhf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``rlhf("runs", "list")``: the command itself, in this process, inside an empty folder and with empty caches."""
    from rlhf_core.cli.main import main

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))

    def run(*args: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in args])
        text = capsys.readouterr()
        return Ran(int(caught.value.code or 0), text.out, text.err)

    return run


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    """Arguments of a training run of a few seconds."""
    return QUICK


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three steps; not to be changed."""
    from rlhf_core.cli.main import main

    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit) as caught:
        main([*QUICK, "--run-dir", str(folder), "--json"])
    assert caught.value.code == 0
    return folder

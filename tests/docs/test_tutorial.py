"""The tutorial, block by block from an empty folder; then every command that wants a run, on the tutorial's runs."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ALL, ROOT, commands
from tests.docs.place import POLICIES, WEIGHTS, reward_models, tables, write_sounds, write_tables
from tests.docs.rules import TUTORIAL, small, way

COMMANDS = [command for block in ALL if block.language == "bash" for command in commands(block)]
RUNS = ("RUN", "RUN2", "runs/a", "runs/b", "runs/dpo", "runs/grpo-20260131-142501")
"""What pages call a run of the reader's."""


def environment(folder: Path) -> dict[str, str]:
    """The commands of this environment, with caches of their own."""
    home = {"RLHF_CACHE": str(folder / ".cache"), "RLHF_HOME": str(folder / ".home"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **home, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the whole tutorial was executed."""
    folder = tmp_path_factory.mktemp("tutorial")
    for block in [b for b in ALL if b.page == TUTORIAL]:
        program = ["bash", "-ec"] if block.language == "bash" else [sys.executable, "-c"]
        ran = subprocess.run(
            [*program, block.text], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=280
        )
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_works(done: Path) -> None:
    """The policy learned the form that the pairs prefer."""
    import json

    assert (done / "runs/grpo/report.html").stat().st_size > 10_000
    evaluations = [
        row["eval/reward/mean"]
        for row in map(json.loads, (done / "runs/grpo/metrics.jsonl").read_text().splitlines())
        if "eval/reward/mean" in row
    ]
    assert evaluations[-1] > evaluations[0]


@pytest.fixture(scope="module")
def place(done: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs under every name that pages use."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(done / "runs", folder / "runs")
    for name in RUNS:
        shutil.copytree(done / "runs/grpo", folder / name)
    (folder / "configs").symlink_to(ROOT / "configs")
    for name in POLICIES:
        if not (folder / name).exists():
            (folder / name).symlink_to(WEIGHTS)
    write_tables(folder, tables())
    write_sounds(folder)
    reward_models(folder)
    evaluate = "rlhf eval prompts --dataset pocket/arithmetic --verifier numeric --limit 4 --max-tokens 4 --out evals/A"
    subprocess.run(["bash", "-ec", evaluate], cwd=folder, env=environment(folder), check=True, capture_output=True)
    shutil.copytree(folder / "evals/A", folder / "evals/B")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)  # the plan of a model of 7B alone takes 80 s of a processor
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long if page == "docs/memory.md" else ())
        for page in sorted({c.block.page for c in COMMANDS if way(c).kind == "slow"})
    ],
)
def test_commands_that_want_a_run(page: str, place: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for command in COMMANDS:
        if command.block.page == page and way(command).kind == "slow":
            if command.piped:
                subprocess.run(
                    ["bash", "-ec", command.line], cwd=place, env=environment(place), check=True, timeout=250
                )
                continue
            monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))  # what a reader types to `rlhf chat`
            ran = call(*small(command)[1:])
            assert ran.code == 0, f"{command}\n{ran.out}{ran.err}"

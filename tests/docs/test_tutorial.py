"""The tutorial, block by block from an empty folder; then every command that wants a run, on the tutorial's runs."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.main import main
from tests.docs.blocks import ALL, ROOT, Command, commands
from tests.docs.place import POLICIES, WEIGHTS, reward_models, tables, write_sounds, write_tables
from tests.docs.rules import TUTORIAL, small, way

COMMANDS = [command for block in ALL if block.language == "bash" for command in commands(block)]
RUNS = ("RUN", "RUN2", "runs/a", "runs/b", "runs/dpo", "runs/grpo-20260131-142501")
"""What pages call a run of the reader's."""
RAN: set[tuple[str, ...]] = set()
"""Commands that succeeded on a page before; several pages have the same."""


@contextmanager
def inside(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """In a folder, with caches there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RLHF_CACHE", str(folder / ".cache"))
        patch.setenv("RLHF_HOME", str(folder / ".home"))
        yield patch


def typed(command: Command) -> io.StringIO:
    """What is piped into a command, or what a reader types to `rlhf chat`."""
    echo = shlex.split(command.line.rpartition("|")[0]) if command.piped else ["echo", "Hello"]
    assert echo[0] == "echo"
    return io.StringIO(" ".join(echo[1:]) + "\n")


def execute(words: list[str]) -> None:
    """Call `rlhf`, which is to succeed."""
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
        main(words[1:])
    assert not ended.value.code, f"{words}\n{out.getvalue()}"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the whole tutorial was executed."""
    folder = tmp_path_factory.mktemp("tutorial")
    with inside(folder) as patch:
        for block in [b for b in ALL if b.page == TUTORIAL]:
            if block.language == "python":
                exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})
            else:
                for command in commands(block):
                    patch.setattr(sys, "stdin", typed(command))
                    execute(command.words)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial_works(done: Path) -> None:
    """The policy learned the form that the pairs prefer."""
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
    with inside(folder):
        execute(evaluate.split())
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
    monkeypatch.setattr("rlhf_plugin_tts.validation.DRAWS", 50)  # of a bootstrap: every correlation takes 0.3 ms
    for command in COMMANDS:
        words = tuple(small(command)[1:])
        if command.block.page == page and way(command).kind == "slow" and words not in RAN:
            monkeypatch.setattr(sys, "stdin", typed(command))
            ran = call(*words)
            assert ran.code == 0, f"{command}\n{ran.out}{ran.err}"
            RAN.add(words)

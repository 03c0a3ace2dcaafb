"""Several processes are one run: one message, one exit code, one Ctrl-C, and nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.runs.checkpoint import CheckpointStore
from tests.fork_server import heed_ctrl_c
from tests.waiting import wait_for

RLHF = [sys.executable, "-m", "rlhf_core.cli.main"]
LONG = [
    "train",
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--nproc",
    "2",
    "--set",
    "threads=1",
    "--set",
    "dataset.limit=64",
    "--set",
    "reward.workers=1",
    "--set",
    "trainer.steps=200",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.eval_samples=4",
]


def ranks_of(run: Path) -> list[int]:
    """Process ids of the run's workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "rlhf_core.cli.rank_main" in words and str(run) in words and "rlhf_core.runs.launch.ranks" not in words:
            found.append(int(entry.parent.name))
    return found


@contextmanager
def started(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run of two processes, and its folder; whatever is left of it is killed."""
    run = tmp_path / "runs" / "one"
    process = subprocess.Popen(
        [*RLHF, *LONG, *options, "--run-dir", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=heed_ctrl_c,
    )
    try:
        yield process, run
    finally:
        for pid in (process.pid, *ranks_of(run)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.communicate()


def logged(run: Path, text: str) -> bool:
    path = run / "metrics.jsonl"
    return path.is_file() and text in path.read_text()


@pytest.mark.slow  # Ctrl-C of one process: tests/bad_input
def test_ctrl_c_saves_what_a_run_goes_on_from(tmp_path: Path, rlhf: Callable[..., Any]) -> None:
    with started(tmp_path) as (process, run):
        wait_for(lambda: logged(run, '"step": 2'), "second step")
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert err.count("error: ") == 1
        assert f"rlhf train --resume {run}" in err
        assert "Traceback" not in err
        assert not ranks_of(run)
        (saved,) = (run / "checkpoints").iterdir()
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert saved.name == f"step-{max(steps):06d}"
        assert json.loads((run / "failure.json").read_text())["status"] == "interrupted"
        assert not (run / "stop").exists()
        state = rlhf("runs", "show", run, "--json")
        assert json.loads(state.out)["status"] == "interrupted"
        assert CheckpointStore(run / "checkpoints").newest_undamaged() == max(steps)


@pytest.mark.slow
def test_early_ctrl_c_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as (process, run):
        wait_for(lambda: ranks_of(run), "the ranks")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert not ranks_of(run)
        assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", pytest.param("rank", marks=pytest.mark.long)])
def test_killed_from_outside(tmp_path: Path, victim: str) -> None:
    with started(tmp_path) as (process, run):
        wait_for(lambda: logged(run, '"step": 1'), "first step")
        ranks = ranks_of(run)
        assert len(ranks) == 2
        os.kill(process.pid if victim == "launcher" else max(ranks), signal.SIGKILL)
        if victim == "rank":
            _, err = process.communicate(timeout=60)
            assert process.returncode == 1
            assert "SIGKILL" in err
            assert err.count("error: ") == 1
            assert f"rlhf train --resume {run}" in err
            assert json.loads((run / "failure.json").read_text())["status"] == "failed"
        wait_for(lambda: not ranks_of(run), "the end of every rank", 45)


@pytest.mark.slow
def test_bad_input_that_only_a_rank_finds(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    out = subprocess.run(
        [
            *RLHF,
            "train",
            "--algo",
            "grpo",
            "--reward",
            "ensemble",
            "--dataset",
            "pocket/arithmetic",
            "--nproc",
            "2",
            "--run-dir",
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "RLHF_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert out.returncode == 2, out.stderr
    assert out.stderr.count("error: ") == 1
    assert "no preference pairs" in out.stderr
    assert "Traceback" not in out.stderr
    assert not folder.parent.exists()


@pytest.mark.slow
def test_who_only_starts_the_ranks_loads_no_model_library(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", WAITER, *LONG, "--run-dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert out.stdout == "2 ranks []\n", out.stderr


@pytest.mark.slow
def test_the_first_reason_wins_while_another_rank_is_busy(tmp_path: Path) -> None:
    """torchrun ends the busy rank; neither its signal nor its exit code is the run's."""
    code = (
        "import os, time, sys\nfrom pathlib import Path\nfrom rlhf_core.types.errors import DatasetError\n"
        "from rlhf_core.runs.launch.ranks import report\nbusy = Path(__file__).with_name('busy')\n"
        "if os.environ['RANK'] == '0':\n    busy.touch()\n    time.sleep(600)\n"
        "while not busy.exists(): time.sleep(0.02)\n"
        "report(DatasetError('the real reason'))\nsys.exit(2)\n"
    )
    (tmp_path / "rank.py").write_text(code)
    out = subprocess.run(
        [sys.executable, "-c", STARTER, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert out.stdout.split("\n")[:2] == ["2", "the real reason"], out.stderr


STARTER = """
import sys
from pathlib import Path
from rlhf_core.runs.launch import ranks
from rlhf_core.runs.run_dir import RunDir
real = ranks.subprocess.Popen
def start(command, **options):  # the same launcher, another program
    at = command.index("rlhf_core.cli.rank_main") - 1
    return real([*command[:at], str(Path(sys.argv[1], "rank.py"))], **options)
ranks.subprocess.Popen = start
try:
    ranks.run_ranks(RunDir(Path(sys.argv[1])), 2, [], cuda=False)
except ranks.RankFailed as error:
    print(error.exit_code)
    print(error)
"""
WAITER = """
import sys
from rlhf_core.cli.main import main
from rlhf_core.runs.launch import ranks
def started(run, nproc, *options):
    print(nproc, "ranks", [name for name in ("transformers", "torch._dynamo") if name in sys.modules])
ranks.run_ranks = started
main(sys.argv[1:])
"""

"""Run directories that cannot be used, disks that fill up, and resuming something else."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Rlhf = Callable[..., Any]
Refused = Callable[..., str]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_file_is_in_its_place(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    taken = tmp_path / "taken"
    refused("--run-dir", taken, says=(f"run directory '{taken}' cannot be created", "is a file"))
    refused("--run-dir", taken / "run", says=(f"'{taken}' is a file",))
    assert taken.read_text() == "mine"


def test_a_folder_that_refuses(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_bytes(self: Path, data: bytes) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    refused("--run-dir", tmp_path / "run", says=(f"run directory '{tmp_path / 'run'}' cannot be written", "Permission"))


def test_a_run_is_there_already(rlhf: Rlhf, quick: tuple[str, ...], finished_run: Path) -> None:
    before = files(finished_run)
    out = rlhf(*quick, "--run-dir", finished_run)
    assert out.code == 2
    assert f"'{finished_run}' already holds a run" in out.err
    assert f"rlhf train --resume {finished_run}" in out.err
    assert files(finished_run) == before


@pytest.mark.parametrize("again", [False, True])
def test_resuming_with_a_changed_config(rlhf: Rlhf, quick: tuple[str, ...], finished_run: Path, again: bool) -> None:
    before = files(finished_run)
    changed = ("--set", "trainer.optimizer.learning_rate=0.5", "--seed", "4")
    out = rlhf(*(quick if again else ("train",)), *changed, "--resume", finished_run)
    assert out.code == 2
    plan = json.loads((finished_run / "plan.json").read_text())
    rate = plan["config"]["trainer"]["optimizer"]["learning_rate"]
    assert f"trainer.optimizer.learning_rate: {rate} -> 0.5" in out.err
    assert "seed: 0 -> 4" in out.err
    assert "trainer.steps: " not in out.err
    assert files(finished_run) == before


def test_resuming_another_dataset(rlhf: Rlhf, finished_run: Path) -> None:
    out = rlhf("train", "--dataset", "pocket/assistant", "--resume", finished_run)
    assert out.code == 2
    assert "arithmetic" in out.err
    assert "assistant" in out.err


def test_resuming_nothing(refused: Refused) -> None:
    refused("--resume", "nowhere", args=("train",), says=("'nowhere' holds no run to resume", "rlhf runs list"))


def test_resuming_a_damaged_plan(rlhf: Rlhf, finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "plan.json").write_text('{"config": ')
    out = rlhf("train", "--resume", tmp_path / "run")
    assert out.code == 2
    assert "plan.json" in out.err
    assert "Traceback" not in out.err


@pytest.mark.slow
def test_disk_full_at_a_checkpoint(
    rlhf: Rlhf, quick: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_core.runs import checkpoint

    real = checkpoint.save_tree

    def full(folder: Path, name: str, tree: Any) -> None:
        if tree["step"] == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, name, tree)

    monkeypatch.setattr(checkpoint, "save_tree", full)
    run = tmp_path / "run"
    out = rlhf(*quick, "--run-dir", run, "--set", "trainer.checkpoint_every=1")
    assert out.code == 2
    assert "No space left on device" in out.err
    assert "the last complete checkpoint is kept" in out.err
    assert "Traceback" not in out.err
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
    monkeypatch.setattr(checkpoint, "save_tree", real)
    resumed = rlhf("train", "--resume", run, "--json")
    assert (resumed.code, json.loads(resumed.out)["steps"]) == (0, 3)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds few checkpoints of the pocket model."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(rlhf: Rlhf, quick: tuple[str, ...], small_disk: Path) -> None:
    out = rlhf(*quick, "--run-dir", small_disk / "run", "--set", "trainer.checkpoint_every=1")
    assert out.code == 2, out.err
    assert "cannot write" in out.err
    assert "No space left" in out.err
    assert "Traceback" not in out.err
    kept = sorted(p.name for p in (small_disk / "run" / "checkpoints").iterdir())
    assert kept
    assert kept == [f"step-{n:06d}" for n in range(1, len(kept) + 1)], "every folder is a whole checkpoint"
    subprocess.run(["mount", "-o", "remount,size=99m", str(small_disk)], check=True)
    resumed = rlhf("train", "--resume", small_disk / "run", "--json")
    assert (resumed.code, json.loads(resumed.out)["steps"]) == (0, 3)


def test_what_is_found_while_the_rooms_are_built_leaves_nothing(rlhf: Rlhf, tmp_path: Path) -> None:
    for folder in (None, tmp_path / "empty"):
        if folder is not None:
            folder.mkdir()
        where = () if folder is None else ("--run-dir", folder)
        out = rlhf("train", "--algo", "grpo", "--reward", "ensemble", "--dataset", "pocket/arithmetic", *where)
        assert out.code == 2
        assert "no preference pairs" in out.err
        assert not Path("runs").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_folder_with_files_that_a_run_would_overwrite(rlhf: Rlhf, quick: tuple[str, ...], tmp_path: Path) -> None:
    other_run = tmp_path / "mine"
    other_run.mkdir()
    (other_run / "config.yaml").write_text("trainer: {steps: 3}\n")
    (other_run / "samples.jsonl").write_text("{}\n")
    for settings in ((), ("--model", tmp_path / "none")):
        out = rlhf(*quick, *settings, "--config", other_run / "config.yaml", "--run-dir", other_run)
        assert out.code == 2
        assert sorted(p.name for p in other_run.iterdir()) == ["config.yaml", "samples.jsonl"]
    assert "files that a run would overwrite: config.yaml, samples.jsonl" in rlhf(*quick, "--run-dir", other_run).err


@pytest.mark.slow
def test_of_two_runs_in_one_folder_one_goes_on(tmp_path: Path, quick: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "rlhf_core.cli.main", *quick, "--run-dir", str(tmp_path / "runs" / "same")]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=200)[1] for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2], errors
    assert "already holds a run" in errors[codes.index(2)]
    assert json.loads((tmp_path / "runs" / "same" / "summary.json").read_text())["status"] == "completed"

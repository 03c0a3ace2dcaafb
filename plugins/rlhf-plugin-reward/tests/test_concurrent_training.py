"""An ensemble trained on the spot by several processes together, and by two runs at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rlhf_core.config import RlhfError
from rlhf_core.models import ModelError
from rlhf_plugin_reward.ensemble import check_writable, wait_for

SMALL = [
    sys.executable,
    "-m",
    "rlhf_core.cli.main",
    "train",
    "--algo",
    "grpo",
    "--reward",
    "ensemble",
    "--set",
    "reward.members=2",
    "--set",
    "reward.max_pairs=8",
    "--set",
    "reward.heldout_pairs=4",
    "--set",
    "threads=1",
    "--set",
    "trainer.steps=1",
    "--set",
    "trainer.rollout_batch_size=8",
    "--set",
    "dataset.limit=32",
    "--set",
    "trainer.eval_samples=0",
    "--set",
    "trainer.gold_samples=0",
]


def start(tmp_path: Path, name: str, *options: str) -> subprocess.Popen[str]:
    env = {**os.environ, "RLHF_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*SMALL, *options, "--run-dir", str(tmp_path / name)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    return out


def ensembles(tmp_path: Path) -> list[str]:
    """Everything in the cache, hidden leftovers included."""
    return sorted(os.listdir(tmp_path / "cache" / "ensembles"))


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_train_one_ensemble_and_learn_as_one_process_does(tmp_path: Path) -> None:
    output = finish(start(tmp_path, "two", "--nproc", "2"))
    assert output.count("none trained yet for this setting") == 1
    assert "using the one trained before" in finish(start(tmp_path, "one"))
    summaries = [json.loads((tmp_path / n / "summary.json").read_text()) for n in ("one", "two")]
    reports = [s["reports"]["ensemble"] for s in summaries]
    assert reports[0] == reports[1]
    assert ensembles(tmp_path) == [reports[0]["digest"]]
    a, b = (load_file(tmp_path / n / "final" / "model.safetensors") for n in ("one", "two"))
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-4


@pytest.mark.slow
def test_two_runs_that_train_the_same_ensemble_at_once(tmp_path: Path) -> None:
    outputs = [finish(p) for p in [start(tmp_path, "a"), start(tmp_path, "b")]]
    assert any("none trained yet" in text for text in outputs)
    (digest,) = ensembles(tmp_path)
    for name in "ab":
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["reports"]["ensemble"]["digest"] == digest


def test_an_ensemble_may_appear_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ensembles" / "abc"

    def show(seconds: float) -> None:
        folder.mkdir(parents=True)
        (folder / "ensemble.json").write_text("{}")

    monkeypatch.setattr("rlhf_plugin_reward.ensemble.time.sleep", show)
    wait_for(folder, 60)
    assert (folder / "ensemble.json").is_file(), "it was waited for"


def test_a_process_that_does_not_see_the_ensemble_says_so(tmp_path: Path) -> None:
    with pytest.raises(RlhfError, match=r"did not appear in this process's cache within 0 s[\s\S]*RLHF_CACHE"):
        wait_for(tmp_path / "abc", 0.2)


def test_a_cache_that_cannot_be_written_is_found_before_training(tmp_path: Path) -> None:
    check_writable(tmp_path / "ensembles" / "abc")
    assert os.listdir(tmp_path / "ensembles") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"set RLHF_CACHE"):
        check_writable(tmp_path / "file" / "ensembles" / "abc")

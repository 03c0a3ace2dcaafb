"""`rlhf train --dry-run` prints the plan and does nothing else: no network, no training, no file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NO_NETWORK = """
import os, socket

def refuse(*given, **named):
    open(os.environ["CONNECTED"], "a").write(f"{given}\\n")
    raise OSError("the network is forbidden here")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""
MODEL, DATA = "nobody-of-that-name/no-such-model", "nobody-of-that-name/no-such-data"
RUNS = {
    "verifier": ["--algo", "grpo", "--reward", "verifier", "--model", MODEL, "--dataset", DATA],
    "two verifiers": [
        "--algo",
        "grpo",
        "--set",
        "reward={name: verifier}",
        "--model",
        MODEL,
        "--set",
        f"dataset={{sources: [{{source: {{name: pocket, subset: arithmetic}}}}, "
        f"{{source: {{name: hub, path: {DATA}}}, reward: {{name: verifier}}}}]}}",
    ],
    "ensemble": ["--algo", "grpo", "--reward", "ensemble", "--model", MODEL, "--dataset", DATA],
    "ensemble of the pocket": ["--algo", "grpo", "--reward", "ensemble"],
    "reward of the hub": [
        "--algo",
        "grpo",
        "--model",
        MODEL,
        "--dataset",
        DATA,
        "--set",
        f"reward={{name: bradley_terry, path: {MODEL}}}",
    ],
    "sft": ["--algo", "sft", "--model", MODEL, "--dataset", DATA],
    "reward_model": ["--algo", "reward_model", "--model", MODEL, "--dataset", DATA, "--nproc", "2"],
}


@pytest.mark.parametrize("run", sorted(RUNS))
def test_nothing_but_the_plan(run: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    here = tmp_path / "here"
    here.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "CONNECTED": str(tmp_path / "connected"),
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(here / "hf"),
        "RLHF_CACHE": str(here / "cache"),
        "RLHF_HOME": str(here / "home"),
    }
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *RUNS[run], "--dry-run"]
    out = subprocess.run(command, env=env, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)["components"]
    assert not (tmp_path / "connected").exists(), (tmp_path / "connected").read_text()
    assert list(here.iterdir()) == []


def test_rows_that_are_here_are_still_checked(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2 + 2?"}\n{"prompt": "3 + 3?"}\n')
    command = [
        sys.executable,
        "-m",
        "rlhf_core.cli.main",
        "train",
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        str(tmp_path / "rows.jsonl"),
        "--set",
        "dataset.heldout_fraction=0",
        "--dry-run",
    ]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert out.returncode == 2
    assert "has no reference answers" in out.stderr

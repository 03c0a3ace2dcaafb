"""kill -9 in the middle of an evaluation, and on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import ARITHMETIC

COMMAND = [
    sys.executable,
    "-m",
    "rlhf_core.cli.main",
    "eval",
    *ARITHMETIC,
    "--n",
    "4",
    "--limit",
    "40",
    "--set",
    "chunk=16",
    "--json",
    "--out",
]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    env = {**os.environ, "RLHF_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    subprocess.run([*COMMAND, str(tmp_path / "whole")], check=True, capture_output=True, env=env)
    times = tmp_path / "torn" / "times.jsonl"
    with subprocess.Popen(
        [*COMMAND, str(tmp_path / "torn")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
        start_new_session=True,
    ) as process:
        until = time.monotonic() + 200
        while not (times.is_file() and times.read_bytes().count(b"\n") >= 3):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    done = times.read_bytes().count(b"\n")
    assert done < 10
    subprocess.run([*COMMAND, str(tmp_path / "torn")], check=True, capture_output=True, env=env)
    for name in ("rows.jsonl", "pass_rates.jsonl", "settings.json"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert times.read_bytes().count(b"\n") == 10

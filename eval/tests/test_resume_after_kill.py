"""kill -9 in the middle of an evaluation, and on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ARITHMETIC

WORDS = ["eval", *ARITHMETIC, "--n", "2", "--limit", "20", "--set", "chunk=4", "--json", "--out"]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_same_bytes(tmp_path: Path, call: Callable[..., Any]) -> None:
    env = {**os.environ, "RLHF_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    assert call(*WORDS, tmp_path / "whole").code == 0
    times = tmp_path / "torn" / "times.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "rlhf_core.cli.main", *WORDS, str(tmp_path / "torn")],
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
    assert call(*WORDS, tmp_path / "torn").code == 0
    for name in ("rows.jsonl", "pass_rates.jsonl", "settings.json"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert times.read_bytes().count(b"\n") == 10

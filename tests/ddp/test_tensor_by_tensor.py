"""Two ranks write a model tensor by tensor: one process's files, one weight in memory, no rank that waits for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "tensor_by_tensor.py"


def run(out: Path, failing: int, cases: str) -> dict[str, Any]:
    """What the rank found whose look-ups do not fail."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [str(SCRIPT), str(out), str(failing), cases]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.mark.slow
def test_files_memory_and_failures(tmp_path: Path) -> None:
    found = run(tmp_path / "found.json", 1, "all")
    assert len(found["unlike"]) == 7
    assert set(found["unlike"].values()) == {0}, found["unlike"]
    assert max(found["held"]) < 1.3, "one whole weight beyond its share"
    zero, one = found["full disk"]
    assert zero == "OSError: [Errno 28] No space left on device"
    assert one.startswith("OtherRankFailed: rank 0 failed")
    assert "No space left" in one
    assert found["alone"]["seconds"] < 30, "before the deadline: the rank that failed has left"


@pytest.mark.slow
@pytest.mark.long
def test_rank_zero_may_fail_too(tmp_path: Path) -> None:
    assert run(tmp_path / "found.json", 0, "failure")["alone"]["seconds"] < 30

"""Reward ensembles are trained by both ranks under the run's strategy, and are those of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "ensembles.py"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_train_the_ensemble_of_one(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(out)], env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert len(found) == 1 + 3 * (3 if find_spec("deepspeed") else 2)
    for case, numbers in found.items():
        assert numbers["apart"] < 1e-5, case
        assert numbers["scores apart"] < 1e-4, case
        first, second = numbers["shares"]
        assert set(first) == {3}, f"{case}: of five pairs"
        assert set(second) == {2}, case
        assert len(first) == len(second) >= 2, case
        assert numbers["left"] == 0, f"{case}: nothing of the members stays with the strategy"

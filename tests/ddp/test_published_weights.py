"""vLLM servers take weights from ranks that each hold a part: one writes, nobody holds the model, all servers agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "published_weights.py"
MIB = 1 << 20


def found_by(strategy: str, folder: Path) -> dict[str, Any]:
    """What two ranks found."""
    out = folder / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONFAULTHANDLER": "1"}
    command += [str(SCRIPT), str(out), strategy]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


def check(found: dict[str, Any], *, root: int = 0) -> None:
    """Hold what was found to what is promised.

    Args:
        found: by :func:`found_by`.
        root: bytes of weights that each rank holds whole.
    """
    for kind in ("full", "lora"):
        case = found[kind]
        assert case["as the weights say"] is True
        assert case["arrived"] == [True, True], "the servers of both ranks have the weights of the shards, bit for bit"
        assert case["label"] == case["folder"] == 1, "all ranks name the same version"
        assert case["writers"][0] > 0 == case["writers"][1], "rank 0 alone writes"
        share = case["weights"] / 2 + root
        limit = share + 2 * MIB + case["largest"] + case["layer"]
        assert limit < 0.9 * case["weights"], "the limit tells a share from a model"
        assert case["peak"] < limit
    disturbed = found["full"]
    assert disturbed["brought back with its version"] is True, "while rank 0 had written a later one"
    assert disturbed["came back"] == [0, 1]
    first, other = disturbed["disk full"]
    assert "RlhfError: version 4 of the weights could not be written" in first
    assert "No space left on device" in first
    assert "rollout.sync_dir" in first
    assert other.startswith("OtherRankFailed: rank 0 failed")
    assert disturbed["kept"] == ["v3"], "what no rank has any more is gone, and so is what could not be written"
    assert disturbed["after that"] is True
    assert found["full"]["bytes"] == pytest.approx(found["full"]["weights"], rel=0.01)
    assert found["lora"]["bytes"] == pytest.approx(found["lora"]["trained"], rel=0.2), "adapters alone are written"
    assert found["lora"]["bytes"] < found["lora"]["weights"] / 10
    shared = found["shared"]
    assert shared["as the weights say"] is shared["back again"] is True
    assert shared["loads"] == [2, 0], "once a version"
    assert shared["none left"].startswith("EngineUnavailable: no vLLM server is left, and no retry")
    wrong, told = shared["not taken"]
    assert "has other weights than version 2" in wrong
    assert told.startswith("RlhfError: rank 0: ")
    assert "has other weights than version 2" in told


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_servers_of_ranks_that_divide_the_policy(tmp_path: Path) -> None:
    check(found_by("fsdp", tmp_path))

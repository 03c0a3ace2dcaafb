"""rlhf-plugin-deepspeed on two ranks equals one process: every kind of training, every stage, offloaded or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "zero.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
@pytest.mark.parametrize("extent", ["brief", pytest.param("all", marks=pytest.mark.long)])
def test_zero_equals_one_process(extent: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    command += [str(SCRIPT), str(out), extent]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    every = extent == "all"
    runs = 25 if every else 8  # pairs of what is trained and how it is divided
    assert len(found["gradients"]) == (5 if every else 3)
    assert max(found["gradients"].values()) < 1e-7, "of gradients up to 1e-3"
    assert len(found["rewards"]) == (36 if every else 4), "kinds of training in three stages, or in the last"
    assert max(found["rewards"].values()) < 1e-5, found["rewards"]
    assert max(found["few kept"][stage] for stage in "12") < 1e-5, "weights are whole: ranks call the trunk alone"
    assert "keeps features of 3 conversations, and there are" in found["few kept"]["3"]
    assert found["updates"].pop("bf16") > 1e-5, (
        "one process in bfloat16 is farther from one in float32 than this allows"
    )
    assert len({name.rpartition("/")[0] for name in found["updates"]}) == runs
    for what, limit in {"norms": 1e-5, "losses": 1e-5, "weights": 1e-5, "moments": 1e-5}.items():
        distances = {name: gap for name, gap in found["updates"].items() if name.endswith(what)}
        assert len(distances) == runs
        assert max(distances.values()) < limit, distances
    for name, share in found["updates"].items():
        if name.endswith("/one by one"):
            assert share == 0, f"{name}: looked up one by one, weights are those that are gathered at once"
        if name.endswith("/stepped"):
            assert share < 0.55, f"{name}: a rank steps half of the parameters"
        if name.endswith("/layers"):
            assert (share == 0) is ("/3" in name), f"{name}: in stage 3 alone nothing of a layer is left between calls"
        if name.endswith("/bucket"):
            assert share == (1000 if "in buckets" in name else 50_000_000)
    for what in ("reference", "gathered"):
        distances = {name: gap for name, gap in found["updates"].items() if name.endswith(what)}
        assert len(distances) == (14 if every else 6)
        assert max(distances.values()) < 5e-5, distances
    assert 0 < found["casts"]["alive"] <= found["casts"]["layer"], "stage 3 holds the casts of one layer"
    assert len(found["handed over"]) == 4
    assert max(found["handed over"].values()) < 1e-6, "moments pass from one layout to the next bit for bit"

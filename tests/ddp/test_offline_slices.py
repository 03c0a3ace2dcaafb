"""sft, dpo and reward_model on shards: no rank reads or holds the whole model, and the result is one process's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "offline_slices.py"


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_each_rank_reads_its_slices(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(out)], env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert found.keys() == {"sft", "sft+lora", "dpo", "dpo+lora", "reward_model"}
    for case, numbers in found.items():
        assert numbers["whole reads"] == 0, case
        assert numbers["moved"] > 1e-4, case
        assert numbers["apart"] < 1e-5, case
        assert numbers.get("resumed", 0) == 0, case
        assert numbers["kl apart"] <= 1e-4 * numbers["kl"], case
    assert {case for case, numbers in found.items() if numbers["kl"] > 0} == {"sft+lora", "dpo"}
    held = [found[case]["held"] for case in ("sft", "dpo+lora", "reward_model")]  # the others gather weights to sample
    assert max(held) < 0.8, "half of the weights, and what a forward gathers of a layer and of the root"

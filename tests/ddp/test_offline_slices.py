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
@pytest.mark.parametrize(
    "cases",
    [("sft", "dpo"), pytest.param(("reward_model", "sft+lora", "dpo+lora"), marks=pytest.mark.long)],
    ids=["whole", "others"],
)
def test_each_rank_reads_its_slices(cases: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(out), *cases], env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert found.keys() == set(cases)
    for case, numbers in found.items():
        assert numbers["whole reads"] == 0, case
        assert numbers["moved"] > 1e-4, case
        assert numbers["apart"] < 1e-5, case
        assert numbers.get("resumed", 0) == 0, case
        assert numbers["kl apart"] <= 1e-4 * numbers["kl"], case
    sampled = {"sft+lora", "dpo"}
    assert {case for case, numbers in found.items() if numbers["kl"] > 0} == sampled & found.keys()
    held = [numbers["held"] for case, numbers in found.items() if case not in sampled]  # sampling gathers weights
    assert max(held) < 0.8, "half of the weights, and what a forward gathers of a layer and of the root"

"""Stage 3 of rlhf-plugin-deepspeed loads by parts: no rank holds a model, and every weight is the file's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .test_published_weights import check, found_by

SCRIPT = Path(__file__).parent / "zero_loading.py"
BUCKET = 4 * 1000


@pytest.mark.slow
@pytest.mark.timeout(650)
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
def test_a_rank_holds_its_share_and_a_bucket(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(out)], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    assert len(found) == 6
    for name, numbers in found.items():
        share, trained = numbers["weights"] / 2, numbers["trained"] / 2
        limit = share + numbers["largest"] + numbers["drawn"]
        assert numbers["unequal"] == 0, name
        assert (numbers["reading"] < limit) is ("by parts" in name), f"{name}: a share, and a weight beside it"
        assert limit < 0.85 * numbers["weights"], f"{name}: the limit tells a share from a model"
        # stepped copy and gradients of what is trained, and embedding and head whole
        stays = share + 2 * trained + numbers["root"] + BUCKET
        if "by parts" in name:
            assert numbers["loading"] < stays + numbers["largest"] + numbers["drawn"], name
    policy = found["policy, by parts"]
    assert policy["planned"] == pytest.approx(policy["loading"], rel=1e-5), "what rlhf memory plan says"


@pytest.mark.long  # test_published_weights.py does the same with FSDP
@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'rlhf-plugin-deepspeed[deepspeed]'"
)
def test_vllm_servers_take_weights_from_its_parts(tmp_path: Path) -> None:
    found = found_by("deepspeed", tmp_path)
    check(found, root=found["full"]["root"])

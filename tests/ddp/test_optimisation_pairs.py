"""Any two optimisations together give the plain gradient."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import matrix

SCRIPT = Path(matrix.__file__)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("pair", [p for p in matrix.PAIRS if "ranks" not in p], ids=lambda p: "+".join(sorted(p)))
def test_pair(pair: frozenset[str]) -> None:
    assert matrix.distance(pair) < 1e-5


def test_all_together() -> None:
    assert matrix.distance(frozenset(matrix.OPTIONS) - {"ranks"}) < 1e-5


@pytest.mark.slow
@pytest.mark.long  # every pair in one process, and two ranks with each option: other tests
def test_every_pair_with_two_ranks(tmp_path: Path) -> None:
    out = tmp_path / "distances.json"
    subprocess.run([*TORCHRUN, str(SCRIPT), str(out)], env=ENV, check=True, timeout=250)
    found = json.loads(out.read_text())
    once, accumulated = found.pop("exchanges"), found.pop("exchanges of three micro-batches")
    assert accumulated == once > 0, "gradients are exchanged in the last micro-batch only"
    assert len(found) == len(matrix.OPTIONS) - 1
    assert {pair: d for pair, d in found.items() if d >= 1e-5} == {}


@pytest.mark.slow
@pytest.mark.long  # every pair with the small model: above
def test_on_a_real_model() -> None:
    path = os.environ.get("RLHF_SMOLLM2_GGUF", "")
    if not Path(path).is_file():
        pytest.skip("RLHF_SMOLLM2_GGUF is not set")
    options = frozenset(o for o in matrix.OPTIONS if o != "ranks")
    scale = max(float(g.abs().max()) for g in matrix.plain(True, path).values())
    assert matrix.distance(options, path) < 1e-5 * max(1.0, scale)

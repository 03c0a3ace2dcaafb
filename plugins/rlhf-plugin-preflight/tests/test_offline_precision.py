"""Plans of mixed precision, and of divided layers, against live tensors of the same run, where it learns from data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.slow
def test_the_plan_of_sft_is_what_it_holds(tmp_path: Path) -> None:
    """In a process of its own, which forks."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("precisions.py")), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for chosen, numbers in found.items():
        for phase in ("update", "checkpoint"):
            assert numbers["plan"][phase] == pytest.approx(numbers["measured"][phase], rel=0.04), (chosen, phase)
    divided = found["layers divided"]
    assert divided["plan"]["update"] == pytest.approx(divided["measured"]["update"], rel=0.005), "a layer's part is 2 %"
    in_float32, mixed = (found[chosen]["plan"]["update"] for chosen in ("fp32", "bf16"))
    assert mixed < 0.95 * in_float32, "activations are in bfloat16"

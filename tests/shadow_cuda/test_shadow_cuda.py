"""The tests of ``cases.py`` and ``graph_cases.py``, in an interpreter of their own, which has a card from its beginning
to its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("g++") is None, reason="what torch without CUDA lacks is compiled")
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_on_a_card(which: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-p", "tests.shadow_cuda.plugin"]
    command += ["-m", which, "tests/shadow_cuda/cases.py", "tests/shadow_cuda/graph_cases.py"]
    environment = {**os.environ, "RLHF_FORK_SERVER": "0"}
    limit_s = 1800 if which == "long" else 600
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:]

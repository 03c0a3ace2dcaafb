"""The tests of ``cases.py``, in an interpreter of their own: a second device is there for all that runs beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("which", ["not long", "long"])
def test_on_a_second_device(which: str) -> None:
    """Before a release; ``tests/shadow_cuda`` has the commands on a card, in every check."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", which]
    command += ["tests/second_device/cases.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:]

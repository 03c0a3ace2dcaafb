"""scripts/dev/make_venv.sh refuses an interpreter that cannot work, and says what to type instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "dev" / "make_venv.sh"

OLD = """#!/bin/sh
case "$2" in
    *version_info*) exit 1 ;;
    *) echo 3.9.2 ;;
esac
"""
NO_PIP = """#!/bin/sh
case "$2" in
    *ensurepip*) exit 1 ;;
    *) exit 0 ;;
esac
"""


def make(python: str, venv: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), python, str(venv)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("script", "says"), [(OLD, "3.9.2"), (OLD, "PYTHON=python3.12"), (NO_PIP, "python3-venv")])
def test_unusable_interpreter_is_the_users_error(tmp_path: Path, script: str, says: str) -> None:
    python = tmp_path / "python"
    python.write_text(script)
    python.chmod(0o755)
    out = make(str(python), tmp_path / "venv")
    assert out.returncode == 2
    assert says in out.stderr
    assert not (tmp_path / "venv").exists()


def test_missing_interpreter(tmp_path: Path) -> None:
    out = make("no-such-python", tmp_path / "venv")
    assert out.returncode == 2
    assert "no-such-python" in out.stderr


def test_an_environment_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert make("no-such-python", tmp_path).returncode == 0

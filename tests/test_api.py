"""The promised surface: what type checkers see is what is there, and importing it is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import rlhf_core.api


def test_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse(Path(rlhf_core.api.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    shown = {alias.asname for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert shown == set(rlhf_core.api.__all__)


def test_every_promised_name_is_there() -> None:
    missing = [name for name in rlhf_core.api.__all__ if not hasattr(rlhf_core.api, name)]
    assert missing == []


def test_importing_it_brings_no_torch() -> None:
    code = "import sys, rlhf_core.api; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

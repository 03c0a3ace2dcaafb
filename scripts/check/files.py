"""Which files the checks look at."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def repository_files(root: Path) -> tuple[Path, ...]:
    """Every file that git tracks or would add; outside a git work tree, every file."""
    out = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    tracked = (root / name for name in out.stdout.split("\0") if name)
    return tuple(sorted(f for f in (root.rglob("*") if out.returncode else tracked) if f.is_file()))


def python_files(root: Path) -> Iterator[Path]:
    return (f for f in repository_files(root) if f.suffix == ".py")


def is_test(path: Path) -> bool:
    return "tests" in path.parts or path.name in {"conftest.py"} or path.name.startswith("test_")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))

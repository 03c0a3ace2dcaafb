"""Seconds until ``rlhf --help`` and ``rlhf plugins list`` are done, the fastest of seven, and what they import."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

RLHF = str(Path(sys.executable).with_name("rlhf"))
COMMANDS = (["--help"], ["plugins", "list"])
REPEATS = 7
HEAVY = ("torch", "transformers", "datasets", "accelerate", "peft")


def run() -> dict[str, float | list[str]]:
    """Return seconds and heavy modules by command."""
    results: dict[str, float | list[str]] = {}
    for arguments in COMMANDS:
        name = " ".join(["rlhf", *arguments])
        results[f"{name} seconds"] = round(min(seconds(arguments) for _ in range(REPEATS)), 3)
        results[f"{name} heavy imports"] = heavy_imports(arguments)
    return results


def seconds(arguments: list[str]) -> float:
    """Wall time of one start, interpreter included."""
    start = time.perf_counter()
    subprocess.run([RLHF, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def heavy_imports(arguments: list[str]) -> list[str]:
    """Which of :data:`HEAVY` the command imports."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    out = subprocess.run([RLHF, *arguments], check=True, capture_output=True, text=True, env=environment)
    imported = {line.rsplit("|", 1)[-1].strip() for line in out.stderr.splitlines()}
    return sorted(imported & set(HEAVY))

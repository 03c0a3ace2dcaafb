"""A command of the toolkit in a process of its own, which is killed and started again until it is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

KEYS = {"ANTHROPIC_API_KEY": "stand-in-key", "OPENAI_API_KEY": "stand-in-key"}


def start(words: Sequence[str], folder: Path, out: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """``rlhf`` with these words, one thread, keys that are none, a cache of its own, and what lies in the folder."""
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    own = {"OMP_NUM_THREADS": "1", "RLHF_REPORT": "0", "RLHF_CACHE": str(folder / "cache"), "PYTHONPATH": path}
    command = [sys.executable, "-m", "rlhf_core.cli.main", *words]
    return subprocess.Popen(command, env={**os.environ, **KEYS, **own}, stdout=out, stderr=subprocess.PIPE)


def run_to_end(words: Sequence[str], folder: Path, good: Sequence[int] = (0,)) -> bytes:
    """Run to the end; what it printed."""
    process = start(words, folder, subprocess.PIPE)
    out, err = process.communicate(timeout=1800)
    if process.returncode not in good:
        raise SystemExit(f"rlhf {words[0]} ended with code {process.returncode}\n{err.decode()[-3000:]}")
    return out


def kill_when(due: Callable[[], bool], words: Sequence[str], folder: Path, limit_s: float = 300) -> bool:
    """Start, and SIGKILL as soon as it is due; False if the process ended before."""
    process, limit = start(words, folder), time.monotonic() + limit_s
    while process.poll() is None and not due() and time.monotonic() < limit:
        time.sleep(0.0005)
    alive = process.poll() is None
    if alive:
        process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    if not alive and process.returncode:
        raise SystemExit(f"rlhf {words[0]} ended with code {process.returncode}\n{err.decode()[-3000:]}")
    return alive

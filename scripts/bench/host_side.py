"""What the host pays for each completion of a step on two ranks, between the forwards and the update: scores, metrics,
advantages and the trace. With all traced, and in a step that ``trainer.trace_every`` leaves out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COUNTS = (1024, 8192, 32768)
TOKENS = 256
"""Of each completion; more cost more only where they are sent."""


def cases() -> dict[str, Callable[[], Any]]:
    return {f"{count} completions": partial(run, count) for count in COUNTS}


def run(count: int, tokens: int = TOKENS, rounds: int = 3) -> dict[str, Any]:
    """Microseconds of a completion (the fastest round), and bytes that rank 0 receives of each of the other rank's."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        words = ["-m", "scripts.bench._host_rank", str(count), str(tokens), str(rounds), str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*torchrun, *words], check=True, cwd=ROOT, env=environment, timeout=1800)
        return json.loads(out.read_text())

"""What FSDP costs and saves beside DDP on two ranks: bytes that stay between steps, seconds, collectives of an update.

A GRPO update of all weights with AdamW in float32 on gloo, in turn. Wanted of the 135M model, which needs
RLHF_SMOLLM2_GGUF: static bytes at most 0.65 of DDP's, a step at most 1.5 of its time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._sides import as_folder, smollm2

ROOT = Path(__file__).parents[2]
SIZES = {"pocket": (16, 16, 32, 2), "135M": (8, 64, 64, 1)}
"""Model -> completions of a rank, tokens of a prompt and of a completion, micro-batches."""
ROUNDS = {"pocket": 7, "135M": 3}


def cases() -> dict[str, Callable[[], Any]]:
    models = SIZES if os.environ.get("RLHF_SMOLLM2_GGUF") else ("pocket",)
    return {model: partial(run, model) for model in models}


def run(model: str) -> dict[str, Any]:
    figures = on_two_ranks(str(as_folder(smollm2())) if model == "135M" else model, SIZES[model], ROUNDS[model])
    static, ratios = figures["static_bytes"], figures.pop("fsdp_over_ddp")
    return {
        **figures,
        "static_bytes_fsdp_over_ddp": round(static["fsdp"] / static["ddp"], 3),
        "step_fsdp_over_ddp": [round(f(ratios), 2) for f in (statistics.median, min, max)],
    }


def on_two_ranks(path: str, sizes: tuple[int, int, int, int], rounds: int) -> dict[str, Any]:
    """What :mod:`._sharding_rank` finds; ``sizes`` are completions of a rank, tokens of a prompt and of a completion,
    micro-batches."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        words = ["-m", "scripts.bench._sharding_rank", path, json.dumps(sizes), str(rounds), str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*torchrun, *words], check=True, cwd=ROOT, env=environment, capture_output=True, timeout=3000)
        return json.loads(out.read_text())

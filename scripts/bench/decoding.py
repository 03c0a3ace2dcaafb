"""Tokens a processor second of the native engine and of vLLM's CPU build, each in its own process, in turns.

vLLM runs in its own environment with its defaults, so that it compiles the model; the native engine compiles, too
(``rollout.compile=true``). Each side samples the same number of tokens and gives their log-probabilities. Neither waits
for weights: the native engine's layout of them is part of its time, vLLM's is not.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench._processor import peaks
from scripts.bench._sides import Side, as_folder, in_turns, smollm2
from scripts.bench._work import find

WORK = {
    "1 x 1": ("1x1x128", "float32"),
    "8 x 8": ("8x8x64", "float32"),
    "64 prompts": ("64x1x64", "float32"),
    "1 x 1 bf16": ("1x1x128", "bfloat16"),
    "8 x 8 bf16": ("8x8x64", "bfloat16"),
}
"""Prompts x completions x tokens, and the type of weights and products."""
ROUNDS = 5
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def contest(name: str, rounds: int, threads: int, model: Path | None) -> dict[str, Any]:
    case, dtype = WORK[name]
    python = os.environ.get("RLHF_VLLM_PYTHON")
    if not python:
        raise SystemExit("set RLHF_VLLM_PYTHON to the interpreter that scripts/dev/make_vllm_venv.sh made")
    folder = str(as_folder(model or smollm2()))
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = (
            Side(
                engine,
                [python, "-m", "scripts.bench._decoding_side", engine, case, dtype, folder, str(rounds + 1)],
                Path(scratch) / engine,
                threads,
                environment,
            )
            for engine, python, environment in (("native", sys.executable, {}), ("vllm", python, VLLM))
        )
        in_turns(ours, theirs, rounds)
    if {step["tokens"] for step in ours.steps} != {step["tokens"] for step in theirs.steps}:
        raise SystemExit(f"the two sides did not sample as many tokens: {ours.steps} {theirs.steps}")
    speeds = {side.name: [step["tokens"] / step["cpu_seconds"] for step in side.steps] for side in (ours, theirs)}
    ratios = [a / b for a, b in zip(speeds["native"], speeds["vllm"], strict=True)]
    return {
        "work": find(case).what,
        "dtype": dtype,
        "times_vllm": round(statistics.median(ratios), 3),
        "times_vllm_by_round": [round(ratio, 3) for ratio in ratios],
        "tokens_per_processor_second": {side: round(statistics.median(v), 1) for side, v in speeds.items()},
        "tokens_per_second": {
            side.name: round(statistics.median(step["tokens"] / step["seconds"] for step in side.steps), 1)
            for side in (ours, theirs)
        },
        "product_gflops": peaks(dtype, threads),
        "threads": threads,
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def cases(rounds: int = ROUNDS, threads: int = 1, model: Path | None = None) -> dict[str, Callable[[], dict[str, Any]]]:
    """``rounds`` is how often each side takes its turn, ``model`` a .gguf file or folder."""
    return {name: partial(contest, name, rounds, threads, model) for name in WORK}

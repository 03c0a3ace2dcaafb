"""One forward and backward over completions of unequal length: padded, packed, prompts shared, bfloat16, checkpointed.

All variants take turns in one process with one thread. Memory is the peak of resident memory above what was there
before, the gradient included. Errors are against the padded forward: largest of the logprobs, and norm of the
gradient's difference over its norm.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.gradient_checkpointing import wake_checkpointing
from rlhf_core.models.layers.matmul import use_matmul_backend
from rlhf_core.models.load import load_policy
from rlhf_core.models.precision import set_precision
from rlhf_core.training.forward import ALL, PLAIN, ForwardOptions, completion_logprobs, structure

HEAD = ForwardOptions(share_prefix=False, packing=False)
WORK = {"pocket": ((16, 24, 12, 20, 18, 30, 10, 22), 8, (8, 48)), "other": ((90,), 4, (32, 256))}
"""Prompt lengths, completions of each, and their shortest and longest."""


def batch(vocabulary: int, kind: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Random tokens: prompts (repeated) and completions, lengths evenly between shortest and longest."""
    rng, (lengths, group, (low, high)) = np.random.default_rng(0), WORK[kind]

    def draw(n: int) -> tuple[int, ...]:
        return tuple(rng.integers(6, vocabulary, n).tolist())

    prompts = [p for n in lengths for p in [draw(n)] * group]
    sizes = [round(n) for _ in lengths for n in np.linspace(low, high, group)]
    return prompts, [draw(n) for n in sizes]


def memory_mb(field: str) -> float:
    """Resident memory of this process, ``VmRSS`` now or ``VmHWM`` at most, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def once(model: Any, prompts: Sequence[Any], completions: Sequence[Any], options: ForwardOptions) -> dict[str, Any]:
    """Time, memory, logprobs and gradient of one forward and backward."""
    model.zero_grad(set_to_none=True)
    ctypes.CDLL(None).malloc_trim(0)  # what earlier turns left is not there to be used unseen
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = memory_mb("VmRSS"), time.perf_counter(), time.process_time()
    out = completion_logprobs(model, prompts, completions, entropy=True, **options.as_arguments)
    logprobs = out.logprobs_BT[out.mask_BT]
    (logprobs * torch.cos(torch.arange(len(logprobs)))).mean().backward()
    row = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "mb": memory_mb("VmHWM") - before}
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return {**row, "logprobs": logprobs.detach(), "gradient": gradient}


VARIANTS = {
    "padded, all logits": PLAIN,
    "padded": HEAD,
    "shared": ALL.without("packing"),
    "packed": ALL.without("share_prefix"),
    "packed + shared": ALL,
}
EXTRA = ("packed + shared, checkpointed", "packed + shared, bf16")


def measure(path: str, rounds: int) -> dict[str, Any]:
    """Medians and errors of the variants, and their speed over padding."""
    use_matmul_backend("auto")
    torch.set_num_threads(1)
    model: Any = load_policy(ModelConfig(path=path)).model
    prompts, completions = batch(int(model.config.vocab_size), "pocket" if path == "pocket" else "other")
    assert structure(model).pack, "this model cannot be packed"
    rows: dict[str, list[dict[str, Any]]] = {}
    truth: dict[str, Any] = {}

    def turn(name: str, options: ForwardOptions) -> None:
        row = once(model, prompts, completions, options)
        got = {k: row.pop(k) for k in ("logprobs", "gradient")}
        if not truth:
            truth.update(got)
        row["nats"] = float((got["logprobs"] - truth["logprobs"]).abs().max())
        row["gradient"] = float((got["gradient"] - truth["gradient"]).norm() / truth["gradient"].norm())
        rows.setdefault(name, []).append(row)

    for _ in range(rounds):
        for name, options in VARIANTS.items():
            turn(name, options)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wake_checkpointing(model)
    for _ in range(rounds):
        turn(EXTRA[0], ALL)
    model.gradient_checkpointing_disable()
    set_precision(model, "bf16")
    for _ in range(rounds):
        turn(EXTRA[1], ALL)
    slow = statistics.median(r["cpu"] for r in rows["padded"])
    results: dict[str, Any] = {}
    for name, runs in rows.items():
        middle = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
        results[name] = {
            "cpu_seconds": round(middle["cpu"], 3),
            "wall_seconds": round(middle["wall"], 3),
            "speed_over_padded": round(slow / middle["cpu"], 2),
            "peak_mb": round(middle["mb"]),
            "logprob_error": float(f"{middle['nats']:.1e}"),
            "gradient_error": float(f"{middle['gradient']:.1e}"),
        }
    lengths = [len(c) for c in completions]
    work = {
        "prompt_tokens": [len(p) for p in dict.fromkeys(prompts)],
        "completions": len(lengths),
        "completion_tokens": sum(lengths),
        "longest": max(lengths),
    }
    return {"model": Path(path).name, "rounds": rounds, "load_average": os.getloadavg(), "work": work, "paths": results}


def run(path: str = "pocket", rounds: int = 3) -> dict[str, Any]:
    """For ``python -m scripts.bench``: a model folder or .gguf file; ``pocket`` is the embedded model."""
    return measure(path, rounds)

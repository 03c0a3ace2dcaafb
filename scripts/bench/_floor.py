"""The least time that the arithmetic of a step could take: its multiplications over those a large product reaches.

Counted are the matrices that every token passes (a tied head once, as the head), with every prompt read once per
step; attention over the past is left out (a few percent here). A training token costs three such passes, one forward
and two backward; with frozen matrices under LoRA adapters the gradient of the weights falls away: two.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlhf_core.models.layers.matmul import use_matmul_backend
from scripts.bench._grpo_work import Work

ROWS, INPUTS, OUTPUTS = 2048, 1536, 1536


def peak(dtype: str, threads: int, kind: str) -> float:
    """Operations per second of a large matrix product, the best of five; ``kind`` says who multiplies."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    on = use_matmul_backend("onednn" if kind == "onednn" else "torch")
    a, b = (torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((ROWS, INPUTS), (INPUTS, OUTPUTS)))
    taken: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        torch.mm(a, b)
        taken.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    if on:
        use_matmul_backend("torch")
    return 2.0 * ROWS * INPUTS * OUTPUTS / min(taken[1:])


def peaks(dtype: str, threads: int) -> dict[str, float]:
    """In 10^9 operations per second, by who multiplies."""
    kinds = ("torch", "onednn") if dtype == "float32" else ("torch",)
    return {kind: round(peak(dtype, threads, kind) / 1e9, 1) for kind in kinds}


@dataclass(frozen=True)
class Matrices:
    """Multiplications per token."""

    layers: int
    head: int


def matrices(folder: Path) -> Matrices:
    """Count a model folder's weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings().weight.numel()
    inside = sum(m.weight.numel() for m in model.get_decoder().modules() if isinstance(m, torch.nn.Linear))
    return Matrices(inside, head)


def operations(work: Work, folder: Path) -> dict[str, float]:
    """10^9 operations of a step's rollout and update, prompts read once each."""
    from transformers import AutoTokenizer

    size, tokenizer = matrices(folder), AutoTokenizer.from_pretrained(folder)
    prompt = sum(len(tokenizer(p)["input_ids"]) for p in work.prompts)
    completion = sum(work.lengths())
    forward = 2.0 * ((prompt + completion) * size.layers + completion * size.head)
    return {"rollout": round(forward / 1e9, 1), "update": round((2 if work.lora_r else 3) * forward / 1e9, 1)}


def shares(work: Work, folder: Path, peak_gflops: float, parts: dict[str, float]) -> dict[str, float]:
    """Part -> floor over measured seconds; 1 would be a machine that does nothing but multiply at its best."""
    return {name: round(ops / peak_gflops / parts[name], 3) for name, ops in operations(work, folder).items()}

"""The processor and how fast it multiplies: without them a ratio between two programs says little, for libraries have
favourite makes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rlhf_core.models.layers.matmul import use_matmul_backend

ROWS, INPUTS, OUTPUTS = 512, 1024, 1024
CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """As the system names it, and the widest vectors that torch uses on it.

    Example:
        AMD EPYC (family 25, model 17), AVX512
    """
    return f"{_name()}, {torch.backends.cpu.get_cpu_capability()}"


def cards() -> list[str]:
    """Every card that torch sees, by name and memory.

    Example:
        ["NVIDIA H100 80GB HBM3, 79 GiB"]
    """
    every = (torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count()))
    return [f"{card.name}, {card.total_memory / 2**30:.0f} GiB" for card in every]


def device_name() -> str:
    """Where a run computes: the first card, else the processor."""
    return next(iter(cards()), None) or processor()


def _name() -> str:
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in lines)
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    name = facts.get("model name") or platform.machine()
    if "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def product_gflops() -> dict[str, float]:
    """10^9 operations per second of one core in a large float32 product, by who multiplies; processor time counts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.randn(ROWS, INPUTS), torch.randn(INPUTS, OUTPUTS)
    speeds: dict[str, float] = {}
    for kind in ("torch", "onednn"):
        if use_matmul_backend(kind) == (kind == "onednn"):
            speeds[kind] = round(2e-9 * ROWS * INPUTS * OUTPUTS / cpu_seconds(lambda: torch.mm(a, b)), 1)
    use_matmul_backend("torch")
    torch.set_num_threads(threads)
    return speeds


def cpu_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The least processor time of all threads, the first call not counted."""
    work()
    taken: list[float] = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)

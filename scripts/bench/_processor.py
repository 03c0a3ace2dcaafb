"""The processor and how fast it multiplies: without them a ratio between two programs says little, for libraries have
favourite makes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rlhf_core.models.layers.matmul import use_matmul_backend

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
    """10^9 operations per second of one core in a large float32 product; processor time counts."""
    return _speeds((512, 1024, 1024), "float32", 1, time.process_time)


def peaks(dtype: str, threads: int) -> dict[str, float]:
    """The same of several threads, by the clock."""
    return _speeds((2048, 1536, 1536), dtype, threads, time.perf_counter)


def _speeds(sizes: tuple[int, int, int], dtype: str, threads: int, clock: Callable[[], float]) -> dict[str, float]:
    """By who multiplies: 10^9 operations per second, the best of five."""
    rows, inputs, outputs = sizes
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = (torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((rows, inputs), (inputs, outputs)))
    speeds: dict[str, float] = {}
    for kind in ("torch", "onednn") if dtype == "float32" else ("torch",):
        if use_matmul_backend(kind) == (kind == "onednn"):
            speeds[kind] = round(2e-9 * rows * inputs * outputs / least_seconds(lambda: torch.mm(a, b), clock), 1)
    use_matmul_backend("torch")
    torch.set_num_threads(before)
    return speeds


def least_seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """The least seconds of five calls, after a first one."""
    work()
    taken: list[float] = []
    for _ in range(5):
        start = clock()
        work()
        taken.append(clock() - start)
    return min(taken)

"""Sizes of memory as people write them, and how much there is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from rlhf_core.config import ConfigError

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
LIMITS = {
    "/sys/fs/cgroup/memory.max": "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "/sys/fs/cgroup/memory/memory.usage_in_bytes",
}
"""Files with the limit of this process's control group -> what it uses."""


def read_amount(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = match.group(2).upper() if match else ""
    if match is None or unit not in UNITS:
        raise ConfigError(
            f"'{text}' is not an amount of memory", fix="a number and a unit, such as 80GiB, 24GB or 512MiB"
        )
    amount = int(float(match.group(1)) * UNITS[unit])
    if amount < 1 << 20:
        raise ConfigError(f"'{text}' is {amount} bytes: no run fits that", fix="a unit may be missing: 80GiB")
    return amount


def readable(count: float) -> str:
    """Bytes for people.

    Example:
        >>> readable(5_494_400)
        '5.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def available_ram() -> int:
    """Bytes of main memory that this process can still get: free ones and swap, or what its control group leaves."""
    facts = dict(line.split(":", 1) for line in _lines("/proc/meminfo"))
    counted = [int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree") if name in facts]
    if not counted:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(sum(counted), *_left_of_group(), 1 << 62)


def device_memory(*, on_cpu: bool) -> int:
    """Bytes of the device in all, free or not; on the CPU main memory, or the control group's limit if that is less."""
    if on_cpu:
        most = [int(lines[0]) for file in LIMITS if (lines := _lines(file)) and lines[0].isdigit()]
        return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *most, 1 << 62)
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def _left_of_group() -> list[int]:
    for limit, used in LIMITS.items():
        most, now = _lines(limit), _lines(used)
        if most and now and most[0].isdigit():
            figures = dict(line.split() for line in _lines(str(Path(limit).with_name("memory.stat"))) if line)
            return [max(0, int(most[0]) - int(now[0]) + int(figures.get("inactive_file", 0)))]
    return []


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


def ranks_here(world_size: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many of the ranks are on this machine, as the launcher says; all where none does.

    Example:
        >>> ranks_here(12, {"RANK": "0", "SLURM_STEP_TASKS_PER_NODE": "8,4"})
        8
    """
    if "LOCAL_WORLD_SIZE" in environ:
        return int(environ["LOCAL_WORLD_SIZE"])
    first = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", "")) if "RANK" in environ else None
    return int(first.group()) if first else world_size

"""Training a real model with one of the repository's configurations."""

from __future__ import annotations

import resource
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config import UserError
from rlhf_core.data import write_json


def configuration(name: str) -> dict[str, Any]:
    """One of ``configs/`` of the checkout that this package is installed from."""
    file = Path(__file__).parents[4] / "configs" / f"{name}.yaml"
    if not file.is_file():
        raise UserError(
            f"there is no {file.name}", why="it is read from the repository's configs/", fix="run this from a checkout"
        )
    return yaml.safe_load(file.read_text())


@contextmanager
def recorded_cost(file: Path) -> Generator[None, None, None]:
    """Write wall and processor seconds of the commands that are run inside, unless an earlier call has written what
    they cost when they had to be run."""
    wall, cpu = time.perf_counter(), _child_seconds()
    yield
    if not file.is_file():
        seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": _child_seconds() - cpu}
        write_json(file, rounded(seconds, 1))


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rounded(metrics: Mapping[str, float] | None, digits: int = 4) -> dict[str, float]:
    return {key: round(value, digits) for key, value in (metrics or {}).items()}

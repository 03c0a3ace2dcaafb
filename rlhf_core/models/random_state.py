"""State of the global random generators of Python, numpy and torch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """State of every global random generator."""
    kind, keys, pos, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (str(kind), np.asarray(keys), int(pos), int(has_gauss), float(cached)),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore :func:`rng_state`."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    for card, of_card in enumerate(state.get("cuda", ())[: torch.cuda.device_count()]):  # saved where there were more
        torch.cuda.set_rng_state(of_card, card)


@contextlib.contextmanager
def preserved_rng() -> Generator[None, None, None]:
    """What runs inside leaves every global random generator as it was."""
    before = rng_state()
    try:
        yield
    finally:
        set_rng_state(before)


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)

"""How strategies share the bytes of a model out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
STRATEGIES = tuple(_TABLE)


@dataclass(frozen=True)
class Shares:
    """The part of each kind of bytes that one rank holds, and what is gathered for the moment of use."""

    weights: float
    gradients: float
    moments: float
    gathers: bool = False
    """A decoder layer's weights at a time are whole, and the root group (embedding, head) in forward and backward."""
    moments_on_host: bool = False
    weights_on_host: bool = False
    stepped: float = 0.0
    """The part of a second copy of the trained weights, which is what the optimizer steps."""
    host_gradients: float = 0.0
    """Gradients in main memory, and what they and stepped weights are copied through, as a part of the trained weights:
    DeepSpeed has one buffer of that size beside them, in stage 2 a second one in which micro-batches add up."""
    keeps_root: bool = False
    """The root group stays whole, and gradients lie in one buffer for good (ZeRO's stage 3)."""

    @property
    def writes_parts(self) -> bool:
        """Whether a checkpoint gets each rank's moments as they lie, and no copy of them (FSDP)."""
        return self.gathers and not self.keeps_root


def shares(name: str, ranks: int, ranks_per_node: int) -> Shares:
    """Of a strategy on so many ranks; HSDP shards among ``ranks_per_node``."""
    one = 1 / (min(ranks, ranks_per_node) if name == "hsdp" else ranks)
    row = dict(_TABLE[name])
    divided, times = row.pop("divided"), row.pop("times", {})
    parts = {part: one if part in divided else 1 for part in ("weights", "gradients", "moments")}
    return Shares(**parts, **{part: one * count for part, count in times.items()}, **row)

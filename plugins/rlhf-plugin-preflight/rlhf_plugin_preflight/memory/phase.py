"""One phase of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_plugin_preflight.memory.engine import RESERVED

Parts = dict[str, int]
ON_DEVICE = ("sampler copy", "rewards", "gradients", "reduce buffer", *RESERVED)
"""Parts that no strategy keeps in main memory beside a device of its own."""


@dataclass(frozen=True)
class Phase:
    parts: Parts
    host: Parts
    """In main memory, where the device has memory of its own."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def in_one_memory(self) -> Phase:
        """The same where main memory is the device's."""
        names = [*self.parts, *(name for name in self.host if name not in self.parts)]
        return Phase({name: self.parts.get(name, 0) + self.host.get(name, 0) for name in names}, {})


def phase_of(
    held: Mapping[str, float],
    state: Mapping[str, float],
    more: Mapping[str, float],
    *,
    weights_away: bool,
    state_away: bool,
) -> Phase:
    """Put every part where it lies; a name that is in several of them counts once for each. ``held`` are weights,
    ``state`` is the optimizer's; ``more`` is always on the device."""
    device: dict[str, float] = {}
    host: dict[str, float] = {}
    for source, away in ((held, weights_away), (state, state_away), (more, False)):
        for name, size in source.items():
            target = host if away and name not in ON_DEVICE else device
            target[name] = target.get(name, 0.0) + size
    return Phase(_whole(device), _whole(host))


def _whole(parts: Mapping[str, float]) -> Parts:
    return {name: round(size) for name, size in parts.items() if round(size)}

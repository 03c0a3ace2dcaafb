"""One part of the reward makes it rise while another part falls."""

from __future__ import annotations

import math
from typing import Any

from rlhf_plugin_hacking.config import DominanceConfig
from rlhf_plugin_hacking.sequential import Shift, rises
from rlhf_plugin_hacking.signals import Change, Finding, Readings, Row, gain, number, spread


class Dominance:
    """Every part is tested for a fall, at an equal part of the signal's rate."""

    def __init__(self, config: DominanceConfig, warmup: int, alpha: float, change: Change) -> None:
        self.config, self.warmup, self.alpha, self.change = config, warmup, alpha, change
        self.memory: dict[str, Any] = {"names": []}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        parts, memory = self.parts(row), self.memory
        value, deviation = number(row, "reward/mean"), number(row, "reward/std")
        if len(parts) < 2 or value is None or deviation is None:
            return {}, None
        if not memory["names"]:
            memory["names"] = sorted(parts)
        if memory["names"] != sorted(parts):
            return {}, None  # a step in which a part is missing cannot be compared
        readings = Readings(memory)
        readings.add((value, deviation, *(parts[name] for name in memory["names"])))
        if len(readings) <= self.warmup:
            return {}, None
        shifts = self.shifts(readings)
        if not shifts:
            return {}, None
        looks = [self.look(readings, shift) for shift in sorted(shifts, key=lambda s: (s.significant, s.z))]
        return {"dominance": looks[-1][0]}, next((f for _, f in reversed(looks) if f is not None), None)

    def shifts(self, readings: Readings) -> list[Shift]:
        """Falls of any part; rises of the reward itself where no other part need fall."""
        if not self.config.at_others_cost:
            return rises(readings.column(0), self.alpha, readings.dropped)
        names = self.memory["names"]
        columns = [[-value for value in readings.column(2 + i)] for i in range(len(names))]
        return [shift for column in columns for shift in rises(column, self.alpha / len(names), readings.dropped)]

    def look(self, readings: Readings, shift: Shift) -> tuple[float, Finding | None]:
        """Share of the part that rose most, and whether it is alarming."""
        config, names = self.config, self.memory["names"]
        changes = {name: gain(readings.column(2 + i), shift.early, shift.late) for i, name in enumerate(names)}
        rise = gain(readings.column(0), shift.early, shift.late) / spread(readings.column(1), self.warmup)
        top, worst = max(changes, key=lambda k: changes[k]), min(changes, key=lambda k: changes[k])
        total = sum(max(0.0, change) for change in changes.values())
        share = changes[top] / total if total > 0 else 0.0
        lost = -changes[worst] >= config.at_others_cost * changes[top] if config.at_others_cost else True
        if not shift.significant or rise < config.rise or share < config.share or not lost:
            return share, None
        return share, Finding(
            f"{share:.0%} of the reward's rise is its part '{top}' ({changes[top]:+.3g}), while '{worst}' changed by "
            f"{changes[worst]:+.3g} ({shift.z:.1f} standard errors)",
            "one part is easier to raise than the others, or weighs too much",
            (f"the weight of '{top}' in the reward", self.change("trainer.kl.coefficient", 0.1)),
        )

    def parts(self, row: Row) -> dict[str, float]:
        """Parts on one scale: those that a composite weighs, which add up to the reward, or those that are named."""
        parts = {k.removeprefix("reward/part/"): v for k, v in row.items() if k.startswith("reward/part/")}
        weighted = {k.removesuffix("/weighted"): v for k, v in parts.items() if k.endswith("/weighted")}
        sums = {k: v for k, v in weighted.items() if "/" not in k}  # not those of a composite within
        parts |= sums
        return {k: float(parts[k]) for k in self.config.parts or sums if k in parts and math.isfinite(parts[k])}

"""The reward that is optimised rises or holds, another measure falls or stays behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlhf_plugin_hacking.config import DivergenceConfig
from rlhf_plugin_hacking.sequential import Shift, rises
from rlhf_plugin_hacking.signals import Change, Finding, Readings, Row, gain, number, spread

PROXY, SECOND, PROXY_STD, SECOND_STD, SECOND_ERROR = range(5)


class Divergence:
    """Two tests over the readings of both measures, each at half of the signal's rate."""

    def __init__(self, config: DivergenceConfig, warmup: int, alpha: float, stop_alpha: float, change: Change) -> None:
        self.config, self.warmup, self.alpha, self.stop_alpha = config, warmup, alpha, stop_alpha
        self.change = change
        self.memory: dict[str, Any] = {}

    def read(self, row: Row) -> tuple[dict[str, float], Finding | None]:
        """Reads ``proxy``, ``second``, their ``_std`` and ``second_count``; see :class:`DivergenceConfig`."""
        values = [number(row, k) for k in ("proxy", "second", "proxy_std", "second_std")]
        if any(v is None for v in values):
            return {}, None
        proxy, second, proxy_std, second_std = (float(v or 0.0) for v in values)
        count = number(row, "second_count")
        error = second_std / math.sqrt(count) if count else 0.0
        Readings(self.memory).add((proxy, second, proxy_std, second_std, error))
        metrics, finding = self.look()
        return {"proxy": proxy, "second": second, **metrics}, finding

    def look(self) -> tuple[dict[str, float], Finding | None]:
        readings = Readings(self.memory)
        if len(readings) <= self.warmup:
            return {}, None
        scale = [spread(readings.column(i), self.warmup) for i in (PROXY_STD, SECOND_STD)]
        proxies = np.array(readings.column(PROXY)) / scale[0]
        seconds = np.array(readings.column(SECOND)) / scale[1]
        least = math.sqrt(float(np.mean(np.square(readings.column(SECOND_ERROR))))) / scale[1]
        falls = rises(-seconds, self.alpha / 2, readings.dropped, least)
        stops = rises(-seconds, self.stop_alpha, readings.dropped, least)
        behind = rises(self.config.follow * proxies - seconds, self.alpha / 2, readings.dropped, least)
        if not falls:
            return {}, None

        def moved(shift: Shift) -> tuple[float, float]:
            """(What the proxy gained, what the second measure lost)."""
            return gain(proxies, shift.early, shift.late), -gain(seconds, shift.early, shift.late)

        def paid_for(shift: Shift, least_loss: float) -> bool:
            rise, loss = moved(shift)
            return shift.significant and loss >= least_loss and rise > -loss / 2

        alarms = [s for s in falls if paid_for(s, self.config.fall)]
        alarms += [s for s in behind if s.significant and moved(s)[0] >= self.config.rise]
        hard = any(paid_for(s, self.config.hard_fall) for s in stops)
        if hard and not alarms:
            alarms = [s for s in stops if paid_for(s, self.config.hard_fall)]
        shown = max(alarms or falls, key=lambda shift: shift.z)
        rise, loss = moved(shown)
        metrics = {"proxy_gain": rise, "second_loss": loss, "second_z": max(s.z for s in falls)}
        return metrics, self.finding(shown, rise, loss, hard) if alarms else None

    def finding(self, shift: Shift, rise: float, loss: float, hard: bool) -> Finding:
        name = f"second reward '{self.config.second.name}'" if self.config.second else "reward on held-out prompts"
        dropped = Readings(self.memory).dropped
        windows = [f"{w.start + 1 + dropped}-{w.stop + dropped}" for w in (shift.early, shift.late)]
        return Finding(
            f"from readings {windows[0]} to {windows[1]} the reward gained {rise:.2f} standard deviations of its "
            f"scores and the {name} lost {loss:.2f} of its own ({shift.z:.1f} standard errors)",
            "the policy exploits what only the trained reward likes",
            (
                self.change("trainer.kl.coefficient", 0.1),
                self.change("trainer.steps", "...") + ": stop at the best, see hacking/second",
                self.change("reward.name", "ensemble"),
            ),
            hard,
        )

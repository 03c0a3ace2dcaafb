"""What the completions of a step look like: repeated, cut off, in another form than required."""

from __future__ import annotations

from statistics import mean, pstdev

from rlhf_plugin_health.config import FormatDriftConfig, IdenticalConfig, LengthCollapseConfig, LengthRunawayConfig
from rlhf_plugin_health.watch import Metrics, Watch, number


class Identical(Watch[IdenticalConfig]):
    """Completions that are the same although they were drawn independently."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        surprise, groups = number(metrics, "repeat_surprise"), number(metrics, "identical_fraction")
        common = number(metrics, "commonest_fraction")
        if surprise is not None and surprise > self.config.max_surprise:
            return self.message("identical_in_a_group_by_seed", surprise=surprise)
        if groups is not None and groups > self.config.max_groups:
            return self.message("identical_in_a_group", groups=groups)
        if common is not None and common > self.config.max_commonest:
            return self.message("identical_in_a_step", common=common)
        return None


class LengthRunaway(Watch[LengthRunawayConfig]):
    """Completions that grow without end or are cut off."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        length, cut = number(metrics, "completion_length/mean"), number(metrics, "truncated_fraction")
        grown = None if length is None else self._grown(length)
        if cut is None or cut <= self.config.max_truncated:
            return grown
        return self.message("truncated", cut=cut)

    def _grown(self, length: float) -> str | None:
        config = self.config
        start, before = self.start("length", length, config.settle), self.recent("length", length, config.window)
        if start is None or len(before) < config.settle:
            return None
        spread = max(pstdev(before), config.least_spread * mean(before))
        score = (length - mean(before)) / spread if spread else 0.0
        if score <= config.max_z and length <= config.max_growth * start:
            return None
        if score > config.max_z and self.streak < self.patience:
            self.memory["length"].pop()  # a jump is compared with what was before it until it has been reported
        times = length / max(start, 1e-9)
        return self.message("length_runaway", length=length, times=times, score=score, count=len(before))


class LengthCollapse(Watch[LengthCollapseConfig]):
    """Completions that say next to nothing."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, length = self.config, number(metrics, "completion_length/mean")
        start = None if length is None else self.start("length", length, config.settle)
        if length is None or start is None or start <= config.floor:
            return None
        if length * config.max_shrink >= start and length > config.floor:
            return None
        return self.message("length_collapse", length=length, start=start)


class FormatDrift(Watch[FormatDriftConfig]):
    """Answers that are still right but no longer in the required form."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config = self.config
        strict, loose = self._fallen(metrics, config.strict), self._fallen(metrics, config.flexible)
        if strict is None or strict[0] <= config.max_drop or (loose is not None and loose[0] > 0.5 * strict[0]):
            return None
        flexible_note = f", while '{config.flexible}' did not" if loose is not None else ""
        return self.message("format_drift", strict=config.strict, now=strict[1], fall=strict[0], flexible=flexible_note)

    def _fallen(self, metrics: Metrics, part: str) -> tuple[float, float] | None:
        """How far a part's mean over the window lies below its best one, and that mean."""
        value = number(metrics, f"reward/part/{part}")
        if value is None:
            return None
        values = [*self.recent(part, value, self.config.window), value][-self.config.window :]
        if len(values) < self.config.window:
            return None
        now = mean(values)
        best = max([now, *self.memory.get(f"best {part}", [])])
        self.memory[f"best {part}"] = [best]
        return best - now, now

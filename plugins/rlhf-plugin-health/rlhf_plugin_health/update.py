"""What the update looks like: spikes of KL and gradient, lost entropy, ratios that are wrong from the start."""

from __future__ import annotations

from statistics import median

from rlhf_plugin_health.config import EntropyCollapseConfig, GradientSpikeConfig, KLSpikeConfig, RatioDriftConfig
from rlhf_plugin_health.watch import Metrics, Watch, number


class KLSpike(Watch[KLSpikeConfig]):
    """The policy jumps away from the reference."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, kl = self.config, number(metrics, "kl")
        if kl is None:
            return None
        before = self.recent("kl", kl, config.window)
        if step == 1 and kl > config.first:
            return self.message("kl_before_updates", kl=kl)
        usual = median(before) if len(before) >= config.settle else None
        jumped = usual is not None and kl > max(config.floor, config.factor * usual)
        if not jumped and kl <= config.limit:
            return None
        against = "" if usual is None else f" ({usual:.3g} is the median of the last {len(before)} steps)"
        return self.message("kl_spike", kl=kl, against=against)


class GradientSpike(Watch[GradientSpikeConfig]):
    """A gradient norm far above the usual."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, norm = self.config, number(metrics, "grad_norm")
        if norm is None:
            return None
        before = self.recent("grad_norm", norm, config.window)
        usual = median(before) if len(before) >= config.settle else None
        if usual is None or norm <= max(config.floor, config.factor * usual):
            return None
        return self.message("gradient_spike", norm=norm, usual=usual, count=len(before))


class EntropyCollapse(Watch[EntropyCollapseConfig]):
    """The policy stops exploring."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        config, entropy = self.config, number(metrics, "entropy")
        if entropy is None:
            return None
        start = self.start("entropy", entropy, config.settle)
        if start is None or entropy >= max(config.floor, config.fraction * start):
            return None
        has_entropy_coefficient = hasattr(getattr(self.run, "trainer", None), "entropy_coefficient")
        left_out = () if has_entropy_coefficient else ("trainer.entropy_coefficient",)
        share = entropy / max(start, 1e-9)
        return self.message("entropy_collapse", left_out, entropy=entropy, share=share)


class RatioDrift(Watch[RatioDriftConfig]):
    """Engine and trainer do not mean the same log-probabilities."""

    def look(self, step: int, metrics: Metrics) -> str | None:
        gap, worst = number(metrics, "drift/mean_abs"), number(metrics, "drift/sequence_max_abs")
        ratio = number(metrics, "importance_ratio")
        if gap is not None and gap > self.config.max_gap:
            return self.message("ratio_drift_of_all_tokens", gap=gap)
        if worst is not None and worst > self.config.max_token_gap:
            return self.message("ratio_drift_of_some_tokens", worst=worst)
        if ratio is not None and abs(ratio - 1) > self.config.max_ratio:
            return self.message("ratio_drift", ratio=ratio)
        return None

"""Settings of the monitors. Each default is far above what healthy runs show."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError

if TYPE_CHECKING:
    from rlhf_plugin_health.watch import Health


class WatchConfig(ComponentConfig):
    """What all monitors here share."""

    stop: bool = False
    """End the run instead of warning: after the step, with a checkpoint and the final model."""
    patience: int = Field(default=1, ge=1)
    """Alarming steps in a row before a warning."""
    repeat_every: int = Field(default=10, ge=1)
    """Steps before the same warning is given again."""


class IdenticalConfig(WatchConfig):
    """Completions of one prompt, or of a whole step, that are the same (metric ``identical_fraction``)."""

    name: str = "identical"
    component: ClassVar[str] = "rlhf_plugin_health.samples:Identical"
    patience: int = Field(default=2, ge=1)
    max_surprise: float = Field(default=0.75, gt=0)
    """Nats per completion by which repetitions defy chance: a fixed seed. Independent draws stay below 0.2."""
    max_groups: float = Field(default=0.9, ge=0, le=1)
    """Share of groups whose completions are all the same."""
    max_commonest: float = Field(default=0.9, ge=0, le=1)
    """Share of the commonest completion, whatever its prompt."""


class FormatDriftConfig(WatchConfig):
    """A strict score part falls while a flexible one does not: the form is lost, not the ability."""

    name: str = "format_drift"
    component: ClassVar[str] = "rlhf_plugin_health.samples:FormatDrift"
    strict: str = "format"
    """Score part that checks the form (the numeric verifier's ``format``)."""
    flexible: str = "answer"
    """Score part that takes any form; a reward that has none is judged by ``strict`` alone."""
    max_drop: float = Field(default=0.15, gt=0)
    """Fall of the strict part below its best, both as means over ``window`` steps."""
    window: int = Field(default=4, ge=1)


class EntropyCollapseConfig(WatchConfig):
    """The entropy per token falls far below that of the first steps."""

    name: str = "entropy_collapse"
    component: ClassVar[str] = "rlhf_plugin_health.update:EntropyCollapse"
    patience: int = Field(default=2, ge=1)
    fraction: float = Field(default=0.1, ge=0, lt=1)
    """Of the median of the first ``settle`` steps."""
    floor: float = Field(default=1e-4, ge=0)
    """Nats per token that are too little wherever the run began."""
    settle: int = Field(default=3, ge=1)


class KLSpikeConfig(WatchConfig):
    """KL to the reference jumps, is too large, or is there before any update."""

    name: str = "kl_spike"
    component: ClassVar[str] = "rlhf_plugin_health.update:KLSpike"
    first: float = Field(default=0.002, gt=0)
    """Nats per token at step 1, where the policy still is the reference; bfloat16 causes about 0.0002."""
    factor: float = Field(default=10.0, gt=1)
    """Times the median of the last ``window`` steps."""
    floor: float = Field(default=0.2, ge=0)
    """A jump to less than this is none."""
    limit: float = Field(default=2.0, gt=0)
    """Too much however it came about."""
    window: int = Field(default=10, ge=1)
    settle: int = Field(default=3, ge=1)
    """Steps before a median means anything."""


class GradientSpikeConfig(WatchConfig):
    """The gradient norm before clipping jumps."""

    name: str = "gradient_spike"
    component: ClassVar[str] = "rlhf_plugin_health.update:GradientSpike"
    factor: float = Field(default=10.0, gt=1)
    """Times the median of the last ``window`` steps."""
    floor: float = Field(default=1.0, ge=0)
    """A jump to less than this is none."""
    window: int = Field(default=20, ge=1)
    settle: int = Field(default=3, ge=1)
    """Steps before a median means anything."""


class LengthRunawayConfig(WatchConfig):
    """Completions grow, or most of them are cut off."""

    name: str = "length_runaway"
    component: ClassVar[str] = "rlhf_plugin_health.samples:LengthRunaway"
    patience: int = Field(default=2, ge=1)
    max_truncated: float = Field(default=0.5, ge=0, le=1)
    """Share of completions that reach ``max_tokens``."""
    max_z: float = Field(default=6.0, gt=0)
    """Standard deviations of the mean length above the last ``window`` steps'."""
    least_spread: float = Field(default=0.1, ge=0)
    """Least standard deviation assumed, as a share of the length."""
    max_growth: float = Field(default=4.0, gt=1)
    """Times the length of the first ``settle`` steps."""
    window: int = Field(default=20, ge=1)
    settle: int = Field(default=3, ge=1)


class LengthCollapseConfig(WatchConfig):
    """Completions shrink to a small part of what they were, or to nothing."""

    name: str = "length_collapse"
    component: ClassVar[str] = "rlhf_plugin_health.samples:LengthCollapse"
    patience: int = Field(default=2, ge=1)
    max_shrink: float = Field(default=4.0, gt=1)
    """Times shorter than the first ``settle`` steps."""
    floor: float = Field(default=2.0, ge=0)
    """Tokens that are next to nothing (an end token counts) where completions were longer at first."""
    settle: int = Field(default=3, ge=1)


class RatioDriftConfig(WatchConfig):
    """Behaviour and trainer log-probabilities differ, at any step (the core compares them on the first batch only)."""

    name: str = "ratio_drift"
    component: ClassVar[str] = "rlhf_plugin_health.update:RatioDrift"
    max_gap: float = Field(default=0.05, gt=0)
    """Nats per token with the weights that sampled. bfloat16 causes up to 0.02."""
    max_token_gap: float = Field(default=2.0, gt=0)
    """Largest difference at one token of a completion, mean over completions."""
    max_ratio: float = Field(default=0.2, gt=0)
    """Distance of the mean importance ratio from 1."""


class TimeoutsConfig(WatchConfig):
    """The share of completions whose scoring takes too long rises (metric ``reward/timeout``)."""

    name: str = "timeouts"
    component: ClassVar[str] = "rlhf_plugin_health.pace:Timeouts"
    patience: int = Field(default=2, ge=1)
    factor: float = Field(default=3.0, gt=1)
    """Times the median share of the last ``window`` steps."""
    floor: float = Field(default=0.05, ge=0, le=1)
    """A smaller share is no reason to warn."""
    window: int = Field(default=10, ge=1)
    settle: int = Field(default=3, ge=1)


class SlowStepConfig(WatchConfig):
    """A step takes much longer than the last ones; names the part that does. Not part of ``health``."""

    name: str = "slow_step"
    component: ClassVar[str] = "rlhf_plugin_health.pace:SlowStep"
    factor: float = Field(default=3.0, gt=1)
    """Times the median of the last ``window`` steps."""
    floor_s: float = Field(default=10.0, ge=0)
    """Seconds; a shorter step is not slow."""
    window: int = Field(default=10, ge=1)
    settle: int = Field(default=3, ge=1)


class NoGainConfig(ComponentConfig):
    """Early stop: ends the run when held-out evaluations no longer beat the best one. Not part of ``health``."""

    name: str = "no_gain"
    component: ClassVar[str] = "rlhf_plugin_health.no_gain:NoGain"
    metric: str = "eval/reward/mean"
    """What is compared; higher is better."""
    least: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """A gain of no more than this over the best is none. The evaluation before training counts as the first best where
    it is on the same prompts."""
    patience: int = Field(default=1, ge=1)
    """Evaluations in a row without a gain before the run ends."""


class KeepBestConfig(ComponentConfig):
    """Keeps the checkpoint with the best held-out evaluation in ``RUN/best``, whatever ``keep_checkpoints`` says; the
    summary and the report name it. Not part of ``health``."""

    name: str = "keep_best"
    component: ClassVar[str] = "rlhf_plugin_health.keep_best:KeepBest"
    metric: str = "eval/reward/mean"
    """What is compared: any metric of an evaluation, a benchmark's too. Evaluations on more prompts than the others
    (before and after, where ``gold_samples`` is more than ``eval_samples``) are not."""
    mode: Literal["max", "min"] = "max"
    """Which end is better: ``min`` for a loss."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a run in which an evaluation has no checkpoint, or that has no evaluations."""
        trainer = ctx.config.trainer
        each, saved = int(getattr(trainer, "eval_every", 0)), int(getattr(trainer, "checkpoint_every", 0))
        if not getattr(trainer, "eval_samples", 0) and not ctx.config.benchmarks:
            raise ConfigError(
                f"monitor '{self.name}' has nothing to compare: trainer.eval_samples is 0",
                fix="--set trainer.eval_samples=64, or leave the monitor out",
            )
        if not each or not saved or each % saved:
            raise ConfigError(
                f"monitor '{self.name}' needs a checkpoint of every evaluation: trainer.eval_every is {each}, "
                f"trainer.checkpoint_every {saved}",
                why="the best evaluation may be of a step without one",
                fix=f"--set trainer.checkpoint_every={each}" if each else "--set trainer.eval_every=10",
            )


class HealthConfig(ComponentConfig):
    """All monitors of this plugin under one name; null switches one off."""

    name: str = "health"
    stop: bool = False
    """Let every one of them end the run; to choose, set ``stop`` of one."""
    identical: IdenticalConfig | None = IdenticalConfig()
    format_drift: FormatDriftConfig | None = FormatDriftConfig()
    entropy_collapse: EntropyCollapseConfig | None = EntropyCollapseConfig()
    kl_spike: KLSpikeConfig | None = KLSpikeConfig()
    gradient_spike: GradientSpikeConfig | None = GradientSpikeConfig()
    length_runaway: LengthRunawayConfig | None = LengthRunawayConfig()
    length_collapse: LengthCollapseConfig | None = LengthCollapseConfig()
    ratio_drift: RatioDriftConfig | None = RatioDriftConfig()
    timeouts: TimeoutsConfig | None = TimeoutsConfig()

    def build(self, ctx: BuildContext) -> Health:
        """Return the monitor, with those watchers that are on; ``stop`` here means all of them."""
        from rlhf_plugin_health.watch import Health

        chosen = [c for c in (getattr(self, name) for name in type(self).model_fields) if isinstance(c, WatchConfig)]
        return Health([c.model_copy(update={"stop": c.stop or self.stop}).build(ctx) for c in chosen])

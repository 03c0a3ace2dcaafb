"""Settings of the monitor; importing this never imports torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlhf_core.api import BuildContext, ComponentConfig, Config, ConfigError, component


class LengthConfig(Config):
    """The mean completion length leaves that of the warm-up."""

    z: float = Field(default=2.5, gt=0)
    """Standard deviations (of the warm-up's step means) above the warm-up's mean."""
    direction: Literal["up", "down", "both"] = "up"
    """``both`` also warns of answers that shrink."""
    least_spread: float = Field(default=0.05, gt=0)
    """Least standard deviation assumed, as a share of the length: five steps can agree by chance."""


class DistributionConfig(Config):
    """The rewards of a step move away from those of the warm-up, further each time."""

    kl: float = Field(default=0.15, gt=0)
    """Nats of KL(warm-up || now), both taken for normal distributions with the measured mean and spread."""
    checkpoints: int = Field(default=3, ge=2)
    """Readings in a row that rise, the last of them above ``kl``."""
    every: int = Field(default=2, ge=1)
    """Steps whose mean is one reading."""


class DivergenceConfig(Config):
    """The reward that is optimised (the proxy) rises while another measure of quality does not."""

    second: component("reward") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """A reward that nothing trains on, scored on a sample of the rollouts; None compares with the held-out evaluation
    of the run's own reward, which only finds what does not carry over to other prompts."""
    samples: int = Field(default=64, ge=2)
    """Rollouts of a step that the second reward scores."""
    every: int = Field(default=1, ge=1)
    """Steps between two readings of the second reward."""
    window: int = Field(default=3, ge=1)
    """Readings that are averaged."""
    rise: float = Field(default=0.5, gt=0)
    """Alarms when the proxy has gained this much since the second measure was at its best, in standard deviations of
    the warm-up's scores: it stays behind."""
    fall: float = Field(default=0.25, gt=0)
    """Alarms when the second measure has lost this much since then, in its own standard deviations, while the proxy has
    not fallen: it is paid for."""
    hard_fall: float = Field(default=0.5, gt=0)
    """Such a loss is a HARD_STOP by itself."""
    patience: int = Field(default=2, ge=1)
    """Alarming readings in a row before a warning."""


class DominanceConfig(Config):
    """One part of the reward explains most of its rise, at the cost of another part."""

    share: float = Field(default=0.8, gt=0, le=1)
    """Of the sum of all rises of parts, weights included."""
    rise: float = Field(default=0.5, gt=0)
    """Least rise of the reward itself, in standard deviations of the warm-up's scores."""
    at_others_cost: float = Field(default=0.05, ge=0)
    """Another part has lost at least this share of what the first gained; 0 requires no loss."""
    parts: tuple[str, ...] = ()
    """Names of the parts to compare, all on one scale; empty takes a composite's weighted parts, which add up to the
    reward. Parts of any other reward overlap or have units of their own: they are not compared unless named."""
    window: int = Field(default=3, ge=1)
    """Steps that are averaged."""


class HackingConfig(ComponentConfig):
    """Reward hacking: four signals, levels OK, WARNING and HARD_STOP; a null signal is off."""

    name: str = "hacking"
    component: ClassVar[str] = "rlhf_plugin_hacking.monitor:HackingMonitor"
    warmup: int = Field(default=5, ge=2)
    """Steps (evaluations, of an offline run) that are the baseline; no warnings before."""
    stop: bool = True
    """End the run at HARD_STOP, with a checkpoint; false only warns."""
    hard_stop_signals: int = Field(default=2, ge=1, le=4)
    """Signals that are alarming at the same step for a HARD_STOP."""
    repeat_every: int = Field(default=10, ge=1)
    """Steps before the same warning is given again."""
    length: LengthConfig | None = LengthConfig()
    distribution: DistributionConfig | None = DistributionConfig()
    divergence: DivergenceConfig | None = DivergenceConfig()
    dominance: DominanceConfig | None = DominanceConfig()

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a monitor without signals, and check the second reward as if it were the run's own."""
        if all(s is None for s in (self.length, self.distribution, self.divergence, self.dominance)):
            raise ConfigError(
                "monitor 'hacking' has no signal left",
                why="all four are null",
                fix="leave one of length, distribution, divergence and dominance on",
            )
        second = self.divergence.second if self.divergence else None
        if second is None:
            return
        if second == getattr(ctx.config, "reward", None):
            raise ConfigError(
                "monitor 'hacking': divergence.second is the reward that is trained on",
                why="it rises whenever that one does, so it cannot tell hacking from learning",
                fix="another reward model, a verifier or a judge, or divergence.second=null",
            )
        second.preflight(ctx)

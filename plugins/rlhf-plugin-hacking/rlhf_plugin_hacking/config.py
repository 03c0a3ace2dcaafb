"""Settings of the monitor; importing this never imports torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, Config, ConfigError, component


class LengthConfig(Config):
    """The mean completion length moves, the reward rises with it, and it rises by what the reward pays for length."""

    change: float = Field(default=0.2, gt=0)
    """Least change of the mean length, as a share of the smaller one; up or down."""
    rise: float = Field(default=0.25, gt=0)
    """Least rise of the reward, in standard deviations of its scores."""
    share: float = Field(default=0.5, gt=0, le=1)
    """Least share of that rise which the change of length explains, by the slope of scores over the lengths of a
    prompt's completions (or over the steps' noise, where only metrics are known)."""


class DistributionConfig(Config):
    """How far the rewards have moved from those of the warm-up: the metric ``hacking/reward_kl``, and no alarm, since
    rewards move in every run that learns."""

    every: int = Field(default=2, ge=1)
    """Steps whose mean is one reading."""


class DivergenceConfig(Config):
    """The reward that is optimised (the proxy) rises or holds while another measure of quality falls or stays."""

    second: component("reward") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """A reward that nothing trains on, scored on a sample of the rollouts; None compares with the held-out evaluation
    of the run's own reward, which only finds what does not carry over to other prompts."""
    samples: int = Field(default=64, ge=2)
    """Rollouts of a step that the second reward scores."""
    every: int = Field(default=1, ge=1)
    """Steps between two readings of the second reward."""
    rise: float = Field(default=0.5, gt=0)
    """Alarms when the proxy has gained at least this much, in standard deviations of its scores, and the second measure
    significantly less than ``follow`` times that: it stays behind."""
    follow: float = Field(default=0.25, gt=0, le=1)
    """Share of the proxy's gain, both in standard deviations, that a second measure which follows gains too."""
    fall: float = Field(default=0.25, gt=0)
    """Alarms when the second measure has lost at least this much, in standard deviations of its scores, significantly,
    and the proxy not half as much: it is paid for."""
    hard_fall: float = Field(default=0.5, gt=0)
    """Such a loss, significant at ``false_stop``, is a HARD_STOP by itself."""


class DominanceConfig(Config):
    """One part of the reward explains most of its rise, at the cost of another part."""

    share: float = Field(default=0.8, gt=0, le=1)
    """Of the sum of all rises of parts, weights included."""
    rise: float = Field(default=0.5, gt=0)
    """Least rise of the reward itself, in standard deviations of its scores."""
    at_others_cost: float = Field(default=0.05, ge=0)
    """Another part has lost at least this share of what the first gained, and significantly; 0 requires no loss."""
    parts: tuple[str, ...] = ()
    """Names of the parts to compare, all on one scale; empty takes a composite's weighted parts, which add up to the
    reward. Parts of any other reward overlap or have units of their own: they are not compared unless named."""


class ClassicConfig(Config):
    """Fixed thresholds over the warm-up, as a published detector has them; each signal warns, both at once stop."""

    length_z: float = Field(default=2.5, gt=0)
    """Drift of the mean length, in standard deviations (``sigma``) of the warm-up; up or down."""
    sigma: Literal["responses", "steps"] = "responses"
    """Whose standard deviation that is: of the warm-up's completions, or of its readings' means (which are few and
    close to each other: it warns in most clean runs). Without the lengths of completions, as in offline runs, steps."""
    kl: float = Field(default=0.15, gt=0)
    """KL(warm-up's rewards || today's) in nats, both taken for normal distributions."""
    trend: int = Field(default=3, ge=1)
    """Consecutive readings that are above ``kl``, each above the last."""
    every: int = Field(default=1, ge=1)
    """Steps that make a reading."""


class HackingConfig(ComponentConfig):
    """Reward hacking: levels OK, WARNING and HARD_STOP; a null signal is off."""

    name: str = "hacking"
    component: ClassVar[str] = "rlhf_plugin_hacking.monitor:HackingMonitor"
    preset: Literal["sequential", "classic"] = "sequential"
    """Tests with a stated share of false alarms, or the fixed thresholds of ``classic``, which has no other signal."""
    classic: ClassicConfig = ClassicConfig()
    false_alarm: float = Field(default=0.05, gt=0, lt=1)
    """Most healthy runs that may get a warning, as a share; divided over the signals, all windows and all steps."""
    false_stop: float = Field(default=0.01, gt=0, lt=1)
    """Most healthy runs that may be stopped for a fall of the second measure, as a share."""
    warmup: int = Field(default=5, ge=2)
    """Steps (evaluations, of an offline run) without warnings, which ``distribution`` measures from."""
    stop: bool = True
    """End the run at HARD_STOP, with a checkpoint; false only warns."""
    hard_stop_signals: int = Field(default=2, ge=1, le=3)
    """Signals that are alarming at the same step for a HARD_STOP; ``divergence`` must be one of them."""
    repeat_every: int = Field(default=10, ge=1)
    """Steps before the same warning is given again."""
    length: LengthConfig | None = LengthConfig()
    distribution: DistributionConfig | None = DistributionConfig()
    divergence: DivergenceConfig | None = DivergenceConfig()
    dominance: DominanceConfig | None = DominanceConfig()

    @property
    def alarm_share(self) -> float:
        """What each of the signals that can alarm has of ``false_alarm``."""
        return self.false_alarm / max(1, sum(s is not None for s in (self.length, self.divergence, self.dominance)))

    def check_preset(self) -> None:
        """Refuse settings that the preset does not read."""
        ours = ("false_alarm", "false_stop", "length", "distribution", "divergence", "dominance", "hard_stop_signals")
        unread = ("classic",) if self.preset == "sequential" else ours
        given = [k for k in unread if getattr(self, k) != type(self).model_fields[k].default]
        if given:
            raise ConfigError(
                f"monitor 'hacking': preset '{self.preset}' does not read {', '.join(given)}",
                why="classic has its thresholds under classic, sequential everywhere else",
                fix=f"leave {'them' if len(given) > 1 else 'it'} out, or choose the other preset",
            )

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a monitor without signals or with another preset's settings, and check the second reward as if it were
        the run's own."""
        self.check_preset()
        if all(s is None for s in (self.length, self.divergence, self.dominance)):
            raise ConfigError(
                "monitor 'hacking' has no signal left",
                why="length, divergence and dominance are null",
                fix="leave one of them on",
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

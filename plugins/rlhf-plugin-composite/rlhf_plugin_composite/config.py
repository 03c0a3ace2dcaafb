"""What the entry points name; importing this never imports torch."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, Config, ConfigError, component

if TYPE_CHECKING:
    from rlhf_core.data import Prompt
    from rlhf_plugin_composite.rules import ProgrammaticReward

HOLLOW: tuple[str, ...] = tuple(tomllib.loads(Path(__file__).with_name("hollow.toml").read_text())["phrases"])
"""Phrases that affirm and say nothing; the first thing that a policy learns from a reward model that likes them."""


class LengthGate(Config):
    """How long a completion may be."""

    unit: Literal["words", "characters", "tokens"] = "words"
    """Words are runs without white space; tokens are the policy's."""
    min: int = Field(default=1, ge=0)
    """Shorter ones fail; continuous: the score rises evenly from 0 at nothing to 1 here."""
    max: int = Field(default=150, ge=1)
    """Longer ones fail; continuous: the score falls evenly from here on."""
    zero_at: int | None = Field(default=None, ge=1)
    """Where the continuous score is 0; None is twice ``max``."""

    @property
    def end(self) -> int:
        """``zero_at``, or what it stands for."""
        return 2 * self.max if self.zero_at is None else self.zero_at

    @model_validator(mode="after")
    def _in_order(self) -> LengthGate:
        if not self.min <= self.max < self.end:
            raise ConfigError(
                f"a length gate needs min <= max < zero_at, got {self.min}, {self.max}, {self.end}",
                fix="for example length={min: 1, max: 150, zero_at: 300}",
            )
        return self


class HollowCheck(Config):
    """Phrases that affirm and say nothing ("Absolutely!", "That's a great question!")."""

    patterns: tuple[str, ...] = HOLLOW
    """Regular expressions, upper and lower case alike, whole words."""
    penalty: float = Field(default=0.5, gt=0, le=1)
    """Continuous: what each phrase costs; the score ends at 0."""

    @field_validator("patterns")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            check_pattern(pattern)
        return value


class FormatCheck(Config):
    """One regular expression that a completion must match, or must not."""

    pattern: str
    absent: bool = False
    """The pattern must not occur."""
    whole: bool = False
    """The pattern must match the whole completion, white space around it apart."""
    ignore_case: bool = True
    weight: float = Field(default=1.0, gt=0)
    """Its share with ``combine: mean``."""

    @field_validator("pattern")
    @classmethod
    def _compile(cls, value: str) -> str:
        check_pattern(value)
        return value


class ProgrammaticConfig(ComponentConfig):
    """Rules instead of a model: length, hollow affirmations, formats. Every rule is a part of the score, in [0, 1]."""

    name: str = "programmatic"
    mode: Literal["binary", "continuous"] = "binary"
    """``binary``: 1.0 if every rule holds, else 0.0. ``continuous``: partial credit, combined by ``combine``."""
    combine: Literal["product", "mean", "min"] = "product"
    """Continuous only: ``product`` keeps every rule a gate, ``mean`` lets one make up for another."""
    length: LengthGate | None = LengthGate()
    hollow: HollowCheck | None = HollowCheck()
    checks: dict[str, FormatCheck] = Field(default_factory=dict)
    """Name -> format check. Example: ``{steps: {pattern: "step 1"}, json: {pattern: "[{].*[}]", whole: true}}``"""
    max_characters: int = Field(default=20_000, ge=1)
    """Patterns read no further."""
    pattern_timeout_s: float = Field(default=1.0, gt=0)
    """Seconds for the patterns of one completion; one that needs longer has status ``timeout``, not a score."""

    @model_validator(mode="after")
    def _some_rule(self) -> ProgrammaticConfig:
        if self.length is None and self.hollow is None and not self.checks:
            raise ConfigError(
                "a programmatic reward without a rule gives everything 1.0",
                fix="keep length or hollow, or add to checks",
            )
        check_names(self.checks, "a check")
        if reserved := {"length", "hollow"} & set(self.checks):
            raise ConfigError(
                f"a check cannot be called '{min(reserved)}'",
                why="that is the name of a built-in rule",
                fix="rename it",
            )
        return self

    def build(self, ctx: BuildContext) -> ProgrammaticReward:
        """Return the reward; a tokenizer is loaded only where lengths are counted in tokens."""
        from rlhf_plugin_composite.rules import ProgrammaticReward, token_counter

        counts_tokens = self.length is not None and self.length.unit == "tokens"
        return ProgrammaticReward(self, token_counter(ctx) if counts_tokens else None)


class PartSettings(Config):
    """One reward inside a composite."""

    reward: component("reward")  # pyright: ignore[reportInvalidTypeForm]
    """Any reward that is installed."""
    weight: float = 1.0
    """Factor of its normalised score; negative is a penalty, 0 only records it."""
    normalise: Literal["none", "sigmoid", "zscore"] = "none"
    """``sigmoid``: 1 / (1 + exp(-score / scale)). ``zscore``: (score - mean) / std, clipped."""
    scale: float = Field(default=1.0, gt=0)
    """For ``sigmoid``."""
    statistics: Literal["running", "calibrated"] = "running"
    """Where the z-score's mean and std are from. ``running``: all scores of earlier calls, evaluations included (the
    first call uses its own). ``calibrated``: fixed, from ``mean`` and ``std`` or the composite's ``calibration``."""
    freeze_after: int | None = Field(default=None, ge=2)
    """Running statistics stay as they are once they hold so many scores."""
    mean: float | None = None
    std: float | None = Field(default=None, gt=0)
    clip: float = Field(default=10.0, gt=0)
    """Largest z-score to either side."""

    @field_validator("weight", "mean")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{value} is not a finite number", fix="give a number")
        return value

    @model_validator(mode="after")
    def _both(self) -> PartSettings:
        if (self.mean is None) != (self.std is None):
            raise ConfigError("mean and std of a part belong together", fix="give both, or neither")
        if self.mean is not None and (self.normalise, self.statistics) != ("zscore", "calibrated"):
            raise ConfigError(
                "mean and std are for normalise=zscore with statistics=calibrated",
                why=f"this part has normalise={self.normalise}, statistics={self.statistics}",
                fix="set both, or leave mean and std out",
            )
        return self


class CompositeConfig(ComponentConfig):
    """``sum of weight * normalised score`` over named rewards. Every raw and normalised score is a part of the score.

    A completion that one part has no score for (and a weight that is not 0) has none: the part's status, never 0.0.
    """

    name: str = "composite"
    component: ClassVar[str] = "rlhf_plugin_composite.reward:build_composite"
    changeable: ClassVar[tuple[str, ...]] = ("parts.*.weight",)
    """Settings that may change between steps (``trainer.schedules``)."""
    parts: dict[str, PartSettings] = Field(min_length=1)
    """Name -> part. Example: ``{taste: {reward: {name: bradley_terry, path: runs/rm/final}, normalise: sigmoid,
    weight: 0.7}, rules: {reward: programmatic, weight: 0.3}}``"""
    calibration: str | None = None
    """JSON lines with prompt and completion; they are scored once, when the reward is built, for the z-scores."""

    @model_validator(mode="after")
    def _usable(self) -> CompositeConfig:
        check_names(self.parts, "a part")
        if all(part.weight == 0 for part in self.parts.values()):
            raise ConfigError("every part of the composite has weight 0", fix="give at least one another weight")
        uncalibrated = [name for name, part in self.parts.items() if needs_calibration(part)]
        if uncalibrated and self.calibration is None:
            raise ConfigError(
                f"part '{uncalibrated[0]}' has calibrated statistics, but there is nothing to take them from",
                fix="set its mean and std, or the composite's calibration=FILE.jsonl",
            )
        return self

    def check_prompt(self, prompt: Prompt, *, sampled: bool = False) -> str | None:
        """What the first part says that can judge no completion of a prompt."""
        checks = [getattr(part.reward, "check_prompt", None) for part in self.parts.values()]
        return next((why for c in checks if c is not None and (why := c(prompt, sampled=sampled)) is not None), None)

    def preflight(self, ctx: BuildContext) -> None:
        from rlhf_core.data import check_file

        running = [n for n, p in self.parts.items() if p.normalise == "zscore" and p.statistics == "running"]
        if running and ctx.world_size > 1:
            raise ConfigError(
                f"part '{running[0]}' has running statistics, and there are {ctx.world_size} processes",
                why="each would have its own, and equal completions unequal scores",
                fix="statistics=calibrated, or normalise=sigmoid",
            )
        if self.calibration is not None:
            check_file(self.calibration, "calibration file", "reward.calibration")
        for part in self.parts.values():  # each as if it were the run's reward: a verifier checks the prompts it judges
            part_ctx = ctx
            if getattr(ctx.config, "reward", None) is self:
                part_ctx = ctx.with_(config=ctx.config.model_copy(update={"reward": part.reward}))
            part.reward.preflight(part_ctx)


AnyReward = component("reward")


class RandomConfig(ComponentConfig):
    """A control: 1.0 or 0.0 by chance. What a policy gains or loses under it has nothing to do with its completions.

    Some models gain from such a reward (Shao et al. 2025, "Spurious rewards"); a gain that it brings too is none.
    """

    name: str = "random"
    component: ClassVar[str] = "rlhf_plugin_composite.control:build_random"
    rate: float = Field(default=0.5, gt=0, lt=1)
    """Share of completions that get 1.0; best that of the reward which it is the control of."""


class ShuffledConfig(ComponentConfig):
    """A control: another reward's scores, each given to some other completion of the same call."""

    name: str = "shuffled"
    component: ClassVar[str] = "rlhf_plugin_composite.control:build_shuffled"
    of: AnyReward  # pyright: ignore[reportInvalidTypeForm]
    """The reward whose scores are shuffled."""

    def check_prompt(self, prompt: Prompt, *, sampled: bool = False) -> str | None:
        """What the reward says of a prompt."""
        check = getattr(self.of, "check_prompt", None)
        return None if check is None else check(prompt, sampled=sampled)

    def preflight(self, ctx: BuildContext) -> None:
        if getattr(ctx.config, "reward", None) is self:
            ctx = ctx.with_(config=ctx.config.model_copy(update={"reward": self.of}))
        self.of.preflight(ctx)


def needs_calibration(part: PartSettings) -> bool:
    """Whether its statistics must come from the calibration file."""
    return part.normalise == "zscore" and part.statistics == "calibrated" and part.mean is None


def check_names(names: Iterable[str], kind: str) -> None:
    """Refuse names that would be unreadable in metrics and traces."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ConfigError(f"{kind} cannot be called {name!r}", fix="letters, digits, _ and -")


def check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"{pattern!r} is not a regular expression",
            why=str(error),
            fix="escape characters that mean themselves: . * + ? ( ) [ ] { } | \\ ^ $",
        ) from error

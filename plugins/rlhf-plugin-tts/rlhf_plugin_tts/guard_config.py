"""Settings of the guards and of the default composite; importing this imports no audio library and no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, Config, component
from rlhf_plugin_composite.config import CompositeConfig, PartSettings
from rlhf_plugin_tts.config import DurationConfig, WerConfig

AnyReward = component("reward")


class GuardSettings(Config):
    """What a clip must keep to, whatever its score. A limit that is None is not looked at."""

    action: Literal["penalty", "status"] = "penalty"
    """``penalty``: each limit that is broken takes ``penalty`` off the score. ``status``: the score is ``gated``:
    nothing is learned from the clip, neither good nor bad."""
    penalty: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """In units of the score."""
    most_wer: float | None = Field(default=None, gt=0)
    """Word error rate; runs the recogniser of ``wer``."""
    wer: WerConfig = WerConfig()
    """The recogniser."""
    most_duration_error: float | None = Field(default=1.0, gt=0)
    """``|ln(seconds / expected)|``: 1.0 allows from 0.37 to 2.7 times what the text takes."""
    duration: DurationConfig = DurationConfig()
    """What a text takes."""
    most_clipping: float | None = Field(default=0.01, ge=0, le=1)
    """Share of samples at full scale."""
    most_silence: float | None = Field(default=0.5, ge=0, le=1)
    """Share of frames 40 dB below the loudest one."""
    speech_only: bool = True
    """The sound is speech at all: some of it is voiced, its spectrum moves, and it is no tone."""


class GuardedConfig(ComponentConfig):
    """Another reward, with limits on word errors, duration, clipping and silence, of speech alone."""

    name: str = "guarded"
    component: ClassVar[str] = "rlhf_plugin_tts.guards:build_guarded"
    of: AnyReward  # pyright: ignore[reportInvalidTypeForm]
    """The reward that is guarded."""
    guards: GuardSettings = GuardSettings()

    def preflight(self, ctx: BuildContext) -> None:
        inner = ctx
        if getattr(ctx.config, "reward", None) is self:
            inner = ctx.with_(config=ctx.config.model_copy(update={"reward": self.of}))
        self.of.preflight(inner)
        check_guards(self.guards, ctx)


def speech_parts() -> dict[str, Any]:
    """The default composite: predicted quality and the words, alike; acoustics, which is the same for all clean
    speech, is a penalty and no z-score."""
    return {
        "quality": {"reward": {"name": "dnsmos", "value": "ovrl"}, "normalise": "zscore", "weight": 0.5},
        "words": {"reward": {"name": "wer"}, "normalise": "zscore", "weight": 0.5},
        "acoustics": {"reward": {"name": "acoustic_proxy"}, "normalise": "none", "weight": 1.0},
    }


class SpeechConfig(CompositeConfig):
    """The default reward for speech: z-scores of quality (DNSMOS) and words (WER), less what acoustics finds, with
    guards.

    Several scorers, since a policy that learns from one alone finds what that one does not detect.
    """

    name: str = "speech"
    component: ClassVar[str] = "rlhf_plugin_tts.guards:build_speech"
    parts: dict[str, PartSettings] = Field(default_factory=speech_parts, validate_default=True, min_length=1)
    """Name -> part, as in ``composite``. Default: quality and words 0.5 each, less acoustics."""
    guards: GuardSettings = GuardSettings()
    """Penalties are in standard deviations."""

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        check_guards(self.guards, ctx)


def check_guards(guards: GuardSettings, ctx: BuildContext) -> None:
    if guards.most_wer is not None:
        guards.wer.preflight(ctx)

"""Limits that hold whatever a scorer says: a clip that breaks one is penalised, or not learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.rewards import Sample, Score, ScoreStatus, score_samples
from rlhf_plugin_composite.reward import CompositeReward, build_composite, keeps_state
from rlhf_plugin_tts.audio import MOST_SECONDS, ClipError, read_clip
from rlhf_plugin_tts.duration import Duration
from rlhf_plugin_tts.faults import is_speech
from rlhf_plugin_tts.features import Analysis, silence_fraction
from rlhf_plugin_tts.guard_config import GuardedConfig, GuardSettings, SpeechConfig
from rlhf_plugin_tts.wer import Wer


class Unmeasured(Exception):
    """A limit cannot be measured; ``status`` is the score's."""

    def __init__(self, why: str, status: ScoreStatus) -> None:
        super().__init__(why)
        self.status = status


class Guarded:
    """Another reward's scores, less a penalty per broken limit, or ``gated``; parts are ``guard/NAME`` and
    ``guard/broken``."""

    def __init__(self, reward: Any, guards: GuardSettings) -> None:
        self.reward, self.guards = reward, guards
        whole = {"max_seconds": MOST_SECONDS}  # a limit holds for every clip that the reward scores
        self._wer = None if guards.most_wer is None else Wer(guards.wer.model_copy(update=whole))
        self._duration = (
            None if guards.most_duration_error is None else Duration(guards.duration.model_copy(update=whole))
        )

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        scores = score_samples(self.reward, samples, "the guarded reward")
        return [self._guarded(score, sample) for score, sample in zip(scores, samples)]

    def _guarded(self, score: Score, sample: Sample) -> Score:
        if score.value is None:
            return score
        try:
            measured = self.measure(sample)
        except Unmeasured as error:  # a limit that nobody could look at does not hold
            return Score.failed(error.status, str(error))
        broken = [name for name, (value, most) in measured.items() if value > most]
        parts = {**score.parts, **{f"guard/{n}": v for n, (v, _) in measured.items()}, "guard/broken": len(broken)}
        if broken and self.guards.action == "status":
            reasons = ", ".join(f"{n} {measured[n][0]:.3g} > {measured[n][1]:g}" for n in broken)
            return Score(None, parts, ScoreStatus.GATED, reasons)
        return Score(score.value - self.guards.penalty * len(broken), parts, score.status, score.detail)

    def measure(self, sample: Sample) -> dict[str, tuple[float, float]]:
        """Limit -> (what was measured, the most that is allowed)."""
        guards, measured = self.guards, {}
        try:
            clip = read_clip(sample)
            analysis = Analysis(clip)
        except ClipError as error:
            raise Unmeasured(str(error), ScoreStatus.MISSING) from error
        if guards.most_clipping is not None:
            measured["clipping"] = (clip.clipped, guards.most_clipping)
        if guards.most_silence is not None:
            measured["silence"] = (silence_fraction(analysis), guards.most_silence)
        if guards.speech_only:
            measured["not_speech"] = (float(not is_speech(analysis)), 0.0)
        for name, reward, most in (
            ("duration", self._duration, guards.most_duration_error),
            ("wer", self._wer, guards.most_wer),
        ):
            if reward is None or most is None:
                continue
            (score,) = reward.score([sample])
            if score.value is None:
                raise Unmeasured(f"the limit on '{name}' cannot be looked at: {score.detail}", score.status)
            measured[name] = (score.parts["wer"] if name == "wer" else -score.value, most)
        return measured

    def close(self) -> None:
        if callable(close := getattr(self.reward, "close", None)):
            close()


class GuardedWithState(Guarded):
    """A guarded reward that keeps state, such as running statistics."""

    def state_dict(self) -> dict[str, Any]:
        return self.reward.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reward.load_state_dict(state)


def guard(reward: Any, guards: GuardSettings) -> Guarded:
    """The reward with its limits; a torch module's weights are no state of a run, nor are calibrated statistics."""
    keeps = keeps_state(reward) and not (isinstance(reward, CompositeReward) and not learns(reward))
    return (GuardedWithState if keeps else Guarded)(reward, guards)


def learns(composite: CompositeReward) -> bool:
    """Whether scoring changes a composite: running statistics, or a part with a state."""
    parts = composite.rewards.values()
    return any(n.learns for n in composite.normalisers.values()) or any(keeps_state(part) for part in parts)


def build_guarded(config: GuardedConfig, ctx: BuildContext) -> Guarded:
    return guard(config.of.build(ctx), config.guards)


def build_speech(config: SpeechConfig, ctx: BuildContext) -> Guarded:
    return guard(build_composite(config, ctx), config.guards)

"""The reward without a model: how far a clip's acoustic measures lie outside what they are in clean speech."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip
from rlhf_plugin_tts.clip_reward import ClipReward
from rlhf_plugin_tts.config import NATURAL, AcousticProxyConfig
from rlhf_plugin_tts.faults import MEASURES, is_speech
from rlhf_plugin_tts.features import Analysis


class AcousticProxy(ClipReward):
    """Less the weighted mean of ``min(limit, distance / scale)``, which is ``-limit`` where it is not speech; every
    measure, and ``speech``, is a part of the score."""

    def __init__(self, config: AcousticProxyConfig) -> None:
        super().__init__(config.max_seconds)
        self.config = config
        self.natural = {**NATURAL, **config.natural}

    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        analysis, weights = Analysis(clip), self.config.weights
        measured = {name: MEASURES[name](analysis) for name in weights}
        speech = is_speech(analysis) or not self.config.speech_only
        faults = {name: self._fault(name, value) if speech else self.config.limit for name, value in measured.items()}
        total = sum(weight * faults[name] for name, weight in weights.items())
        return 0.0 - total / sum(weights.values()), {**measured, "speech": float(speech)}

    def _fault(self, name: str, value: float) -> float:
        """Distance from the natural range in scales, 0 inside it; what is not defined is as bad as can be."""
        low, high, scale = self.natural[name]
        outside = self.config.limit if math.isnan(value) else max(low - value, value - high, 0.0) / scale
        return min(self.config.limit, outside)

"""The reward without a model: a weighted sum of standardised acoustic features."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip, ClipError
from rlhf_plugin_tts.clip_reward import ClipReward
from rlhf_plugin_tts.config import PROXY_SCALES, AcousticProxyConfig
from rlhf_plugin_tts.features import FEATURES, Analysis


class AcousticProxy(ClipReward):
    """``sum of weight * clip((feature - mean) / std)``; every feature is a part of the score."""

    def __init__(self, config: AcousticProxyConfig) -> None:
        super().__init__(config.max_seconds)
        self.config = config
        self.scales = {**PROXY_SCALES, **config.scales}

    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        analysis = Analysis(clip, self.config.pitch)
        features = {name: FEATURES[name](analysis) for name in self.config.weights}
        total = 0.0
        for name, weight in self.config.weights.items():
            if weight == 0:
                continue
            if not math.isfinite(features[name]):
                raise ClipError(f"'{name}' of the clip is not defined: it has no voice")
            mean, std = self.scales[name]
            total += weight * max(-self.config.clip, min(self.config.clip, (features[name] - mean) / std))
        return total, features

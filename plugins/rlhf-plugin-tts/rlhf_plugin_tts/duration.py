"""The reward for a plausible duration."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import Clip, ClipError
from rlhf_plugin_tts.clip_reward import ClipReward, spoken_text
from rlhf_plugin_tts.config import DurationConfig
from rlhf_plugin_tts.pocket_voice.numbers import spell_numbers


class Duration(ClipReward):
    """``-|ln(seconds / expected)|`` with ``expected = pause + characters / rate``."""

    resamples = False

    def __init__(self, config: DurationConfig) -> None:
        super().__init__(config.max_seconds, scores_silence=True)
        self.config = config

    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        """0 at the expected duration, -0.69 at half or twice of it."""
        characters = sum(c.isalnum() for c in spell_numbers(spoken_text(sample)))
        if not characters:
            raise ClipError("the prompt has no letter to be spoken")
        expected = self.config.pause_seconds + characters / self.config.characters_per_second
        return -abs(math.log(clip.seconds / expected)), {"seconds": clip.seconds, "expected_seconds": expected}

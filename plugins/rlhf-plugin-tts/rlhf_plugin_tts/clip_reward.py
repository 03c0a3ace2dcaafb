"""What every reward of one clip shares: reading it, and a status with a reason where it has no score."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_tts.audio import Clip, ClipError, read_clip

log = logging.getLogger("rlhf.tts")
RATE = 16_000
"""Sample rate at which every reward scores; clips of other rates are resampled."""
LEAST_SECONDS = 0.1
QUIET = 1e-4
"""A clip whose samples lie all this near to their mean (-80 dB, three steps of 16 bits) is silent."""


class ClipReward:
    """Scores clips one by one."""

    resamples: ClassVar[bool] = True
    """Whether it resamples clips to 16 kHz."""

    def __init__(self, max_seconds: float, *, scores_silence: bool = False) -> None:
        self.max_seconds, self.scores_silence = max_seconds, scores_silence
        self._rates: set[int] = set()

    def measure(self, clip: Clip, sample: Sample) -> tuple[float, Mapping[str, float]]:
        """(value, parts) of one clip."""
        raise NotImplementedError

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; ``missing`` where the clip has none, ``error`` where scoring it failed."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        try:
            clip = read_clip(sample, self.max_seconds)
            self._say_rate(clip.rate)
            check_clip(clip, silence=self.scores_silence)
            value, parts = self.measure(clip, sample)
        except ClipError as error:
            return Score.failed(ScoreStatus.MISSING, str(error))
        except Exception as error:  # one clip costs one score
            return Score.failed(ScoreStatus.ERROR, f"{type(error).__name__}: {error}")
        if not math.isfinite(value):
            return Score.failed(ScoreStatus.ERROR, f"the scorer returned {value}")
        return Score(float(value), {k: float(v) for k, v in parts.items() if math.isfinite(v)})

    def _say_rate(self, rate: int) -> None:
        """Say once what a clip of another rate lacks, or loses."""
        if rate in self._rates or not self.resamples:
            return
        self._rates.add(rate)
        name = type(self).__name__
        if rate < RATE:
            log.warning(
                "%s: clips of %d Hz are resampled to %d Hz; above %g kHz they hold nothing, which lowers scores of "
                "quality: compare with clips of one sample rate only",
                *(name, rate, RATE, rate / 2000),
            )
        elif rate > RATE:
            log.info("%s: clips of %d Hz are resampled to %d Hz, which keeps up to 8 kHz", name, rate, RATE)


def check_clip(clip: Clip, *, silence: bool = False) -> None:
    """Refuse a clip that no scorer can say anything about."""
    if clip.seconds < LEAST_SECONDS:
        raise ClipError(f"the clip lasts {clip.seconds:.3f} s, less than {LEAST_SECONDS}")
    if not silence and float(np.ptp(clip.samples)) < 2 * QUIET:
        raise ClipError("the clip is silent")


def spoken_text(sample: Sample) -> str:
    """What the clip should say: the prompt's ``answer`` where it has one, else its last turn."""
    return sample.prompt.text if sample.prompt.answer is None else sample.prompt.answer

"""The reward for saying the right phones, read from the names of phones that pocket-voice's completions hold."""

from __future__ import annotations

from collections.abc import Sequence

import jiwer

from rlhf_core.data import DatasetError
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_tts.clip_reward import spoken_text
from rlhf_plugin_tts.config import PhonesConfig
from rlhf_plugin_tts.pocket_voice.frontend import PHONES, phones_of

SPOKEN = frozenset(PHONES) - {"pau"}


class Phones:
    """``-min(1, phone error rate)``; part ``per`` is the rate."""

    def __init__(self, config: PhonesConfig) -> None:
        del config

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; ``missing`` where the completion names no phone, or its text cannot be read."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score:
        phones = [name for name in sample.completion.split() if name in SPOKEN]
        if not phones:
            return Score.failed(ScoreStatus.MISSING, "the completion names no phone: only pocket-voice's do")
        try:
            reference = [name for name in phones_of(spoken_text(sample)) if name in SPOKEN]
        except DatasetError as error:
            return Score.failed(ScoreStatus.MISSING, str(error))
        per = float(jiwer.wer(" ".join(reference), " ".join(phones)))
        return Score(-min(1.0, per), {"per": per})

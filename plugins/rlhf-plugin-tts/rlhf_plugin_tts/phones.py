"""The reward for saying the right phones, read from the names of phones that pocket-voice's completions hold."""

from __future__ import annotations

from collections.abc import Sequence

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
        said = [name for name in sample.completion.split() if name in SPOKEN]
        if not said:
            return Score.failed(ScoreStatus.MISSING, "the completion names no phone: only pocket-voice's do")
        try:
            wanted = [name for name in phones_of(spoken_text(sample)) if name in SPOKEN]
        except DatasetError as error:
            return Score.failed(ScoreStatus.MISSING, str(error))
        per = edits(wanted, said) / max(1, len(wanted))
        return Score(-min(1.0, per), {"per": per})


def edits(wanted: Sequence[str], said: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions from one to the other (Levenshtein 1966).

    Example:
        >>> edits("kitten", "sitting")
        3
    """
    row = list(range(len(said) + 1))
    for i, left in enumerate(wanted, 1):
        above, row[0] = row[0], i
        for j, right in enumerate(said, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (left != right))
    return row[-1]

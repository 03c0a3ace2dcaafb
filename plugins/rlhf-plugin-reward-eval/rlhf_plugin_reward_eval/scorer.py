"""Scores of one reward, each conversation once; what is missing stays missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rlhf_core.config import RlhfError
from rlhf_core.rewards import Sample, ScoreStatus, score_samples
from rlhf_plugin_reward_eval.cases import Text
from rlhf_plugin_reward_eval.stats import Floats

CHUNK = 1024
"""Conversations per call of the reward, so that progress can be shown."""


class TooManyMissing(RlhfError):
    """A reward has more missing scores than accepted; exit code 1."""


class Scorer:
    def __init__(self, reward: object, label: str, progress: Callable[[int], None] = lambda n: None) -> None:
        self.reward, self.label, self.progress = reward, label, progress
        self.statuses: Counter[str] = Counter()
        self.first_problem = ""
        self._cache: dict[tuple[object, ...], float] = {}

    def __call__(self, texts: Sequence[Text]) -> Floats:
        """Scores in order, NaN where the reward has none."""
        new = list({t.key: t for t in texts if t.key not in self._cache}.values())
        for at in range(0, len(new), CHUNK):
            part = new[at : at + CHUNK]
            for text, value in zip(part, self.fresh(part)):
                self._cache[text.key] = float(value)
        return np.array([self._cache[t.key] for t in texts])

    def fresh(self, texts: Sequence[Text]) -> Floats:
        """Scores in order, computed anew in one call."""
        samples = [
            Sample(replace(text.row, id=f"evaluate/{number}", messages=text.prompt), text.completion, media=text.media)
            for number, text in enumerate(texts)
        ]
        scores = score_samples(self.reward, samples, f"reward '{self.label}'")  # pyright: ignore[reportArgumentType]
        self.statuses.update(s.status.value for s in scores)
        bad = next((s for s in scores if not s.ok), None)
        if bad is not None and not self.first_problem:
            self.first_problem = f"{bad.status.value}: {bad.detail}"
        self.progress(len(texts))
        return np.array([np.nan if s.value is None or not s.ok else s.value for s in scores], float)

    def refuse_missing(self, scores: Floats, most: float) -> None:
        """Refuse a reward with too few scores for the figures to mean anything."""
        missing = int(np.isnan(scores).sum())
        if missing > most * len(scores) or missing == len(scores):
            counted = ", ".join(f"{name} {n}" for name, n in self.statuses.most_common() if name != ScoreStatus.OK)
            raise TooManyMissing(
                f"reward '{self.label}' has no score for {missing} of {len(scores)} responses",
                why=f"first: {self.first_problem}; {counted}",
                fix="fix the reward or the data, or allow more with --max-missing",
            )

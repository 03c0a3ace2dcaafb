"""Plain Python objects in the place of components: a reward function, rows in memory, a loss. A plan keeps a
description and, where there is one, a digest, so that a run is resumed with the very object it was begun with, or not
at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlhf_core.plugins.contracts import UNORDERED
from rlhf_core.python_api.config import PythonDatasetConfig, PythonLossConfig, PythonRewardConfig, Row, splits_of
from rlhf_core.types.batches import LossOutput
from rlhf_core.types.rollouts import LARGEST_SCORE, Sample, Score, ScoreStatus


class PythonReward:
    """A function from samples to numbers as a reward."""

    def __init__(self, config: PythonRewardConfig) -> None:
        reward = config.find()
        self.function: Callable[[Sequence[Sample]], Any] = getattr(reward, "score", reward)

    def score(self, samples: Sequence[Sample]) -> Any:
        """One score per sample; a None or a number that is not finite is a missing score, never 0.0. What is neither a
        number nor a score, and another number of them than samples, is left to who called, as for any reward."""
        answer: Any = self.function(samples)
        if not isinstance(answer, UNORDERED) and isinstance(answer, Iterable):
            return [_score(value) for value in answer]
        return answer


def _score(value: Any) -> Any:
    if value is None:
        return Score.failed(ScoreStatus.MISSING, "the reward function returned None")
    if isinstance(value, Score | str | bytes):
        return value
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        return value
    if not abs(number) <= LARGEST_SCORE:
        return Score.failed(ScoreStatus.ERROR, f"the reward function returned {number}")
    return Score(number)


class PythonLoss:
    """A function from a batch to an unreduced loss."""

    def __init__(self, config: PythonLossConfig) -> None:
        self.function: Callable[[Any], Any] = config.find()

    def __call__(self, batch: Any) -> LossOutput:
        """The loss, as the core takes it: a tensor ``[B, T]`` or ``[B]``, or a LossOutput."""
        loss = self.function(batch)
        return loss if isinstance(loss, LossOutput) else LossOutput(loss)


class PythonDataset:
    """Rows in memory."""

    def __init__(self, config: PythonDatasetConfig) -> None:
        self.splits = splits_of(config.find())

    def rows(self, split: str) -> Sequence[Row]:
        """Rows of ``train`` or ``heldout``."""
        return self.splits[split]

    def where(self, split: str, number: int) -> str:
        """How a row is named in errors."""
        return f"dataset passed in, {split} row {number + 1}"

"""Rollout batches in a checkpoint; prompts are named by source and id, and found again in the run's dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlhf_core.runs.dataclass_codec import decode, encode
from rlhf_core.training.rollout_batch import RolloutBatch, RolloutGroup
from rlhf_core.types.rollouts import FinishReason, Prompt, PromptGroup, Rollout, Score, ScoreStatus
from rlhf_core.types.turns import Segment, Turn, TurnStatus, VersionSpan

FindPrompt = Callable[[str, str], Prompt]
"""(Source, prompt id) -> prompt."""
CLASSES = (
    RolloutBatch,
    RolloutGroup,
    PromptGroup,
    Rollout,
    Segment,
    VersionSpan,
    Turn,
    Score,
    FinishReason,
    ScoreStatus,
    TurnStatus,
)


def batch_state(batch: RolloutBatch) -> dict[str, Any]:
    """A batch as a tree that :mod:`rlhf_core.types.tree` can save."""
    return encode(batch, {Prompt: lambda prompt: (prompt.source, prompt.id)}, CLASSES)


def read_batch(state: Mapping[str, Any], find: FindPrompt) -> RolloutBatch:
    """The batch that :func:`batch_state` wrote.

    Args:
        state: as it was read back.
        find: gives the prompts; the run's dataset has been compared with the checkpoint's.
    """
    return decode(state, CLASSES, {"Prompt": lambda name: find(*name)})

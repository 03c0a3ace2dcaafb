"""What rank 0 sends to each rank of the signals. Suffix: ``_T`` tokens of one completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlhf_plugin_algorithms.check import Terms
from rlhf_plugin_algorithms.signals import Bools, Example

TEACHER = "teacher_kl"
"""The component ``kl`` of an algorithm with a teacher; it has a mean of its own."""


class Totals(NamedTuple):
    """Over the batch of all ranks, what each component is divided by, and what all of them together count."""

    tokens: Mapping[str, int]
    """Component -> tokens that count."""
    sequences: Mapping[str, int]
    """Component -> rollouts and examples with such tokens."""
    all_tokens: int
    all_sequences: int


class Share(NamedTuple):
    """What one rank is sent."""

    rows: Sequence[Terms]
    """Of its rollouts."""
    algorithms: Sequence[int]
    """Of its rollouts, the position of the algorithm."""
    examples: Sequence[Example]
    totals: Totals


def learned(example: Example) -> Bools:
    """``[T]``, True where an example's token counts."""
    full = np.ones(len(example.completion_ids), bool)
    return full if example.learned_T is None else np.asarray(example.learned_T)

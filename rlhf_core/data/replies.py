"""What a row answers: texts, and turns with calls where an answer is more than a text."""

from __future__ import annotations

from typing import TypeAlias

from rlhf_core.types.messages import Message
from rlhf_core.types.preferences import Demonstration, PreferencePair, UnpairedPreference

Reply: TypeAlias = "tuple[str, Message | None]"
"""A completion, and the turn whole where it is more than a text; as `Formatter.encode_reply` takes them."""


def replies(row: PreferencePair | Demonstration | UnpairedPreference) -> tuple[Reply, ...]:
    """The chosen and the rejected side of a pair; the one answer of any other row."""
    if isinstance(row, PreferencePair):
        return (row.chosen, row.chosen_turn), (row.rejected, row.rejected_turn)
    return ((row.completion, row.turn),)

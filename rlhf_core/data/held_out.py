"""Which rows are held out: decided by what a row asks, not by the file or the line that it stands in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from unicodedata import normalize

from rlhf_core.data.conversations import read_prompt
from rlhf_core.data.schema import RawRow, RowReader, UnusableRow
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import message_text
from rlhf_core.types.rollouts import Message


def content_key(turns: Sequence[Message]) -> str:
    """Hash of what is asked (16 hex digits): roles and texts but for system turns; blanks and accents in one form.

    Example:
        >>> question = [{"role": "user", "content": "What is 2 + 3?"}]
        >>> content_key(question) == content_key([{"role": "user", "content": "What is  2 + 3?\\n"}])
        True
    """
    turn_texts = [
        [turn["role"], " ".join(normalize("NFC", message_text(turn)).split())]
        for turn in turns
        if turn["role"] != "system"
    ]
    return hashlib.sha256(json.dumps(turn_texts).encode()).hexdigest()[:16]


def row_key(reader: RowReader, row: RawRow, question: str | None = None) -> str:
    """:func:`content_key` of a row's prompt, the same for prompts, pairs, demonstrations and conversations of it.

    A row without a prompt has none (""); it stays in training, whose reader says what is wrong with it.

    Args:
        reader: knows the columns.
        row: of any form.
        question: what the row asks where the prompt has a template around it.
    """
    if question is not None:
        return content_key([{"role": "user", "content": question}])
    try:
        return content_key(read_prompt(reader, row)[0])
    except (DatasetError, UnusableRow):
        return ""


def is_held_out(key: str, fraction: float) -> bool:
    """Whether a row of this key is among the held-out ``fraction``; a larger one holds out the same rows and more."""
    if not key:
        return False
    digest = hashlib.sha256(f"held out/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64

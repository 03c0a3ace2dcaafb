"""Rows that offline trainers learn from: pairs, demonstrations, responses with a label."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_core.types.messages import Message, Tool


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """One human (or simulated) preference.

    Example:
        PreferencePair(id="hh/3", prompt=({"role": "user", "content": "Hi"},), chosen="Hello.", rejected="Go away.")
    """

    id: str
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    margin: float = 0.0
    source: str = ""
    tools: tuple[Tool, ...] = ()
    chosen_turn: Message | None = None
    """The chosen turn whole, where it is more than a text: with calls or reasoning; ``chosen`` shows them as text."""
    rejected_turn: Message | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example: a conversation and the completion to imitate."""

    id: str
    prompt: tuple[Message, ...]
    completion: str
    source: str = ""
    tools: tuple[Tool, ...] = ()
    turn: Message | None = None
    """The turn to imitate whole, where it is more than a text: with calls or reasoning."""


@dataclass(frozen=True, slots=True)
class UnpairedPreference:
    """One response and whether it is desirable.

    Example:
        UnpairedPreference("a/3", ({"role": "user", "content": "Hi"},), "Go away.", desirable=False)
    """

    id: str
    prompt: tuple[Message, ...]
    completion: str
    desirable: bool
    source: str = ""
    tools: tuple[Tool, ...] = ()
    turn: Message | None = None
    """As in :class:`Demonstration`."""

"""What a model with a bounded context sees of a request, counted in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from rlhf_core.data import message_text
from rlhf_plugin_agents.backends.base import ContextFull, ModelRequest

Cut = Literal["refuse", "oldest", "newest", "middle"]


def words_of(request: ModelRequest) -> int:
    """Words of all messages; the schemas of tools do not count."""
    return sum(len(message_text(m).split()) for m in request.messages)


def seen(request: ModelRequest, most: int, cut: Cut) -> ModelRequest:
    """The request as far as it fits.

    Args:
        request: what was sent.
        most: words that the model reads.
        cut: what is lost of a longer one: its ``oldest`` words, as a sliding window loses them, its ``newest`` ones, as
            where a text is cut off, or those in the ``middle``.
    """
    size = words_of(request)
    if size <= most:
        return request
    if cut == "refuse":
        raise ContextFull(f"{size} words, and the model reads {most}")
    head = {"oldest": 0, "newest": most, "middle": (most + 1) // 2}[cut]
    kept = range(head), range(size - (most - head), size)
    messages: list[dict[str, Any]] = []
    place = 0
    for message in request.messages:
        words = message_text(message).split()
        left = [w for n, w in enumerate(words, start=place) if n in kept[0] or n in kept[1]]
        place += len(words)
        messages.append({**message, "content": " ".join(left)} if len(left) < len(words) else dict(message))
    return replace(request, messages=messages)

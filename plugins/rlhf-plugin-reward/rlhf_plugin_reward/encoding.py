"""Conversation to token ids, as a reward model was trained to see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core.api import Message
from rlhf_core.sdk import Formatter, write_json

FILE = "reward.json"
"""Beside a reward model's weights; without it a conversation is seen whole and cut on the left."""


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a conversation a reward model sees.

    Example:
        View(turns="last", truncation="left")  # system turn, last user turn and the answer
    """

    turns: str = "all"
    """``all`` turns before the answer, or the ``last`` one with the system turn."""
    truncation: str = "left"
    """The side on which what exceeds the length is cut off."""

    def prompt(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The turns before the answer that are seen."""
        if self.turns == "all":
            return messages
        return [*(m for m in messages[:-1] if m["role"] == "system"), messages[-1]]

    def or_else(self, turns: str | None, truncation: str | None) -> View:
        """The same with what is given put in its place."""
        return View(turns or self.turns, truncation or self.truncation)


def write_view(view: View, folder: Path) -> None:
    """Keep it beside the weights."""
    write_json(folder / FILE, asdict(view))


def read_view(folder: str | Path) -> View:
    """What :func:`write_view` wrote; the default for models from elsewhere."""
    file = Path(folder).expanduser() / FILE
    return View(**json.loads(file.read_text())) if file.is_file() else View()


class Encoder:
    """Conversation to token ids: chat template if the tokenizer has one, plain turns otherwise."""

    def __init__(self, tokenizer: Any, max_length: int, view: View | None = None) -> None:
        self.formatter, self.max_length, self.view = Formatter(tokenizer, "auto"), max_length, view or View()

    def encode(self, prompt: Sequence[Message], completion: str) -> tuple[int, ...]:
        """Ids of the conversation, its ending included; cut when too long."""
        return self.cut(*self.sides(prompt, completion))

    def sides(self, prompt: Sequence[Message], completion: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the prompt and of the answer with its ending, nothing cut."""
        return self.formatter.encode(self.view.prompt(prompt)), self.formatter.encode_answer(completion)

    def cut(self, question: tuple[int, ...], answer: tuple[int, ...]) -> tuple[int, ...]:
        """Both, at most ``max_length`` ids of them."""
        whole = (*question, *answer)
        return whole[-self.max_length :] if self.view.truncation == "left" else whole[: self.max_length]

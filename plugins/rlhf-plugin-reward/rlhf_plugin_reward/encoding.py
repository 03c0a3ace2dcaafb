"""Conversation to token ids, as a reward model was trained to see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data import Message, Tool, write_json
from rlhf_core.models import Formatter, ModelError
from rlhf_core.rewards import Sample

FILE = "reward.json"
"""Beside a reward model's weights; without it the model is from elsewhere."""
EARLIER_LENGTH = 1024
"""The default that early versions did not keep."""


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a conversation a reward model sees."""

    turns: str = "all"
    """``all`` turns before the answer, or from the ``last`` of the user on, with the system turn."""
    truncation: str = "left"
    """The side on which what exceeds the length is cut off."""
    max_length: int | None = None
    """Tokens of a conversation in training; None where that is not known."""
    own: bool = True
    """Trained here: prompt and answer are encoded apart. A model from elsewhere gets what its template writes."""

    def prompt(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The turns before the answer that are seen."""
        if self.turns == "all":
            return messages
        last = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=len(messages) - 1)
        return [*(m for m in messages[:last] if m["role"] == "system"), *messages[last:]]

    def or_else(self, turns: str | None, truncation: str | None, max_length: int | None = None) -> View:
        """The same with what is given put in its place."""
        return View(turns or self.turns, truncation or self.truncation, max_length or self.max_length, self.own)

    def limit(self, context: int) -> int:
        """Most tokens of a conversation: as in training (1024 if not saved), else the model's context."""
        return min(self.max_length or (EARLIER_LENGTH if self.own else context), context)


def write_view(view: View, folder: Path) -> None:
    write_json(folder / FILE, asdict(view))


def read_view(folder: str | Path) -> View:
    """What :func:`write_view` wrote; a model from elsewhere, which has no such file, sees all turns."""
    file = Path(folder).expanduser() / FILE
    return View(**json.loads(file.read_text())) if file.is_file() else View(own=False)


class Encoder:
    """Conversation to token ids: chat template if the tokenizer has one, plain turns otherwise."""

    def __init__(self, tokenizer: Any, max_length: int, view: View | None = None) -> None:
        self.formatter, self.max_length, self.view = Formatter(tokenizer, "auto"), max_length, view or View()

    def encode(self, prompt: Sequence[Message], completion: str, tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Ids of the conversation, its ending included; cut when too long."""
        return self.cut(*self.sides(prompt, completion, tools))

    def encode_sample(self, sample: Sample) -> tuple[int, ...]:
        """Ids of what a reward sees, an episode with its calls and results; cut when too long."""
        call = sample.call
        if call is not None:  # of an answer without calls the reasoning is not seen either
            call = {key: value for key, value in call.items() if key != "reasoning"}
        return self.cut(*self.sides(sample.before, sample.completion, sample.prompt.tools, call))

    def check_episodes(self, model: str, environment: Any) -> None:
        """Refuse an environment whose calls and results this model's chat template cannot write."""
        check_episodes(lambda messages, tools: self.sides(messages, "1", tools), model, environment)

    def sides(
        self, prompt: Sequence[Message], completion: str, tools: Sequence[Tool] = (), turn: Message | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the prompt and of the answer with its ending, nothing cut; ``turn`` is an answer that makes calls. Of
        a model from elsewhere the answer's are those of the whole conversation by its template."""
        if not self.view.own:
            answer: Message = turn or {"role": "assistant", "content": completion}
            text = self.formatter.render([*self.view.prompt(prompt), answer], tools, add_generation_prompt=False)
            return (), self.formatter.encode_rest(text)
        shown = self.view.prompt(prompt)
        return self.formatter.encode(shown, tools), self.formatter.encode_answer(shown, completion, turn, tools)

    def cut(self, question: tuple[int, ...], answer: tuple[int, ...]) -> tuple[int, ...]:
        """Both, at most ``max_length`` ids of them."""
        ids = (*question, *answer)
        return ids[-self.max_length :] if self.view.truncation == "left" else ids[: self.max_length]


def check_episodes(write: Callable[[Sequence[Message], Sequence[Tool]], object], model: str, environment: Any) -> None:
    """Refuse an environment whose calls and results a reward model's chat template cannot write."""
    if environment is None:
        return
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": {}}}
    probe: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "call_0", "name": "f"},
    ]
    try:
        write(probe, tuple(environment.offered()))
    except ModelError as error:
        raise ModelError(
            f"reward model '{model}' cannot read episodes of environment '{environment.name}'",
            why=str(error),
            fix="choose a reward model whose chat template knows tools, or --reward environment",
        ) from error

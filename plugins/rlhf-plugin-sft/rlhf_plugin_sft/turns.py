"""Which tokens of a conversation are learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_core.api import Message, ModelError
from rlhf_core.models.prompt_format import Formatter


class Turns(NamedTuple):
    """A conversation cut where learning may begin.

    Example:
        Turns(prompt=(1, 5, 6), completion=(8, 2, 5, 7, 6, 9, 2), learned=(True, True, False, False, False, True, True))
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    learned: tuple[bool, ...]
    """Of each completion token; answers and their end tokens are, what users say and the template's marks are not."""


def last_answer(formatter: Formatter, prompt: Sequence[Message], text: str) -> Turns:
    """Learn only the last answer; everything before it is read."""
    completion = formatter.encode_completion(text)
    return Turns(formatter.encode(prompt), completion, (True,) * len(completion))


def all_answers(formatter: Formatter, prompt: Sequence[Message], text: str) -> Turns:
    """Learn every answer of the assistant, each as it would be written: after its own prompt, up to its end token.

    Args:
        formatter: with a chat template.
        prompt: the turns before the last answer, those of the assistant among them.
        text: the last answer.

    Raises:
        ModelError: the tokenizer has no chat template, or the template writes earlier turns differently once others
            follow (some drop their reasoning), so that no one sequence holds all of them.
    """
    messages = [*prompt, {"role": "assistant", "content": text}]
    answers = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    if len(answers) == 1:
        return last_answer(formatter, prompt, text)
    if not formatter.chat:
        raise ModelError("learn: all needs a chat template to tell the turns of a conversation apart",
                         why="the prompt format is raw", fix="--set trainer.learn=last, or use a model with a template")
    ids: list[int] = []
    learned: list[bool] = []
    for n, answer in enumerate(answers):
        own = formatter.encode_completion(messages[answer]["content"])
        ids += own
        learned += [True] * len(own)
        if n + 1 < len(answers):
            between = _between(formatter, messages, answer, answers[n + 1], own[-1])
            ids += between
            learned += [False] * len(between)
    return Turns(formatter.encode(messages[: answers[0]]), tuple(ids), tuple(learned))


def _between(formatter: Formatter, messages: Sequence[Message], answer: int, following: int,
             end: int) -> tuple[int, ...]:
    """Tokens from the end token of an answer to where the next one begins, the template's marks included."""
    before = formatter.render(messages[: answer + 1], add_generation_prompt=False)
    after = formatter.render(messages[:following], add_generation_prompt=True)
    said = messages[answer]["content"]
    if not after.startswith(before) or not before.rpartition(said)[1]:
        raise ModelError("the chat template writes an earlier answer differently once other turns follow",
                         where=f"answer: {said[:60]!r}", why="training on all answers at once would show other tokens "
                         "than the policy is fed later", fix="--set trainer.learn=last")
    rest = before.rpartition(said)[2] + after[len(before) :]
    ids = formatter.encode_rest(rest)
    return ids[1:] if ids[:1] == (end,) else ids

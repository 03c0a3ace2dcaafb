"""Which tokens of a conversation are learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_core.data import Message, Tool, message_text
from rlhf_core.models import Formatter, ModelError


class Turns(NamedTuple):
    """A conversation cut where learning may begin.

    Example:
        Turns(prompt=(1, 5, 6), completion=(8, 2, 5, 7, 6, 9, 2), learned=(True, True, False, False, False, True, True))
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    learned: tuple[bool, ...]
    """Of each completion token; answers and their end tokens are, what users say and the template's marks are not."""


def last_answer(
    formatter: Formatter, prompt: Sequence[Message], text: str, turn: Message | None = None, tools: Sequence[Tool] = ()
) -> Turns:
    """Learn only the last answer, its calls included; everything before it is read."""
    completion = formatter.encode_reply(prompt, text, turn, tools)
    return Turns(formatter.encode(prompt, tools), completion, (True,) * len(completion))


def all_answers(
    formatter: Formatter, prompt: Sequence[Message], text: str, turn: Message | None = None, tools: Sequence[Tool] = ()
) -> Turns:
    """Learn every answer of the assistant, each as it would be written: after its own prompt, up to its end token.

    Args:
        formatter: with a chat template.
        prompt: the turns before the last answer, those of the assistant among them.
        text: the last answer.
        turn: the last answer whole, where it is more than a text; results of tools are never learned.
        tools: those of the prompt.
    """
    messages = [*prompt, turn or {"role": "assistant", "content": text}]
    answers = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    if len(answers) == 1:
        return last_answer(formatter, prompt, text, turn, tools)
    if not formatter.chat:
        raise ModelError(
            "learn: all needs a chat template to separate the turns of a conversation",
            why="the prompt format is raw",
            fix="--set trainer.learn=last, or --set model.chat_template=plain",
        )
    first = formatter.encode(messages[: answers[0]], tools)
    ids: list[int] = []
    learned: list[bool] = []
    for answer, following in zip(answers, [*answers[1:], None]):
        more = any(messages[answer].get(key) for key in ("tool_calls", "reasoning"))
        answer_ids = formatter.encode_reply(
            messages[:answer], messages[answer]["content"] or "", messages[answer] if more else None, tools
        )
        ids += answer_ids
        learned += [True] * len(answer_ids)
        if following is not None:
            bridge = formatter.bridge((*first, *ids), messages[:following], tools)
            if bridge.new_segment:
                raise _refused(messages[answer], "the chat template writes it differently once other turns follow")
            ids += bridge.ids
            learned += [False] * len(bridge.ids)
            if (*first, *ids) != formatter.encode(messages[:following], tools):
                raise _refused(messages[answer], _difference(formatter, answer_ids[-1]))
    return Turns(first, tuple(ids), tuple(learned))


def _difference(formatter: Formatter, end: int) -> str:
    closing = formatter.closing[:1]
    if closing == (end,):
        return "the tokens differ from those of the template's whole text"
    names = formatter.tokenizer.convert_ids_to_tokens([*closing, end])
    return (
        f"the chat template closes it with {names[0]!r}, a completion ends with {names[-1]!r}: use a tokenizer whose "
        "eos_token closes turns"
    )


def _refused(answer: Message, why: str) -> ModelError:
    return ModelError(
        "learn: all cannot put all answers of a conversation into one sequence",
        why=why,
        where=f"answer: {message_text(answer)[:60]!r}",
        fix="--set trainer.learn=last, which learns each conversation's last answer",
    )

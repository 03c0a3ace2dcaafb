"""Which tokens of a conversation are learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_core.api import Message, ModelError
from rlhf_core.sdk import Formatter


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
        ModelError: the tokenizer has no chat template, or no one sequence holds all answers as the policy is fed and
            writes them: the template writes earlier turns differently once others follow (some drop their reasoning),
            or closes a turn with another token than the one that ends a completion.
    """
    messages = [*prompt, {"role": "assistant", "content": text}]
    answers = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    if len(answers) == 1:
        return last_answer(formatter, prompt, text)
    if not formatter.chat:
        raise ModelError(
            "learn: all needs a chat template to separate the turns of a conversation",
            why="the prompt format is raw",
            fix="--set trainer.learn=last, or --set model.chat_template=plain",
        )
    first = formatter.encode(messages[: answers[0]])
    ids: list[int] = []
    learned: list[bool] = []
    for answer, following in zip(answers, [*answers[1:], None]):
        answer_ids = formatter.encode_completion(messages[answer]["content"])
        ids += answer_ids
        learned += [True] * len(answer_ids)
        if following is not None:
            between = _between(formatter, messages, answer, following, answer_ids[-1])
            ids += between
            learned += [False] * len(between)
            if (*first, *ids) != formatter.encode(messages[:following]):
                raise _refused(messages[answer], "the tokens differ from those of the template's whole text")
    return Turns(first, tuple(ids), tuple(learned))


def _between(
    formatter: Formatter, messages: Sequence[Message], answer: int, following: int, end: int
) -> tuple[int, ...]:
    """Tokens from the end token of an answer to where the next one begins, the template's marks included."""
    opening = formatter.render(messages[:answer], add_generation_prompt=True)
    before = formatter.render(messages[: answer + 1], add_generation_prompt=False)
    after = formatter.render(messages[:following], add_generation_prompt=True)
    content, written = formatter.guard(messages[answer]["content"]), before.removeprefix(opening)
    place = written.find(content)
    if not before.startswith(opening) or not after.startswith(before) or place < 0 or written[:place].strip():
        raise _refused(messages[answer], "the chat template writes it differently once other turns follow")
    ids = formatter.encode_rest(written[place + len(content) :] + after[len(before) :])
    if ids[:1] != (end,):
        names = formatter.tokenizer.convert_ids_to_tokens([*ids[:1], end])
        raise _refused(
            messages[answer],
            f"the chat template closes it with {names[0]!r}, a completion ends with "
            f"{names[-1]!r}: use a tokenizer whose eos_token closes turns",
        )
    return ids[1:]


def _refused(answer: Message, why: str) -> ModelError:
    return ModelError(
        "learn: all cannot put all answers of a conversation into one sequence",
        why=why,
        where=f"answer: {answer['content'][:60]!r}",
        fix="--set trainer.learn=last, which learns each conversation's last answer",
    )

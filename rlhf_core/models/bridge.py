"""From a turn that was sampled to where the next one begins, without rendering the sampled tokens again (ADR 0014)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_core.models.template_writer import TemplateWriter, keeps
from rlhf_core.types.errors import ModelError
from rlhf_core.types.messages import Message, Tool, content_of


class Bridge(NamedTuple):
    """What the policy is given before its next turn; none of it is learned."""

    ids: tuple[int, ...]
    """To be appended to what the policy read and wrote so far; of a new segment, its whole prompt."""
    new_segment: bool
    """The chat template now writes earlier turns otherwise, so that nothing continues the tokens so far."""


class Cut(NamedTuple):
    """An assistant's turn in a filled template, cut out."""

    body: str
    after: str
    """From the mark that ends the turn on."""


def in_order(answer: Message, results: Sequence[Message]) -> list[Message]:
    """Results in the order of their calls, whichever came first; what answers no call keeps its place."""
    order = {call.get("id"): n for n, call in enumerate(answer.get("tool_calls") or ())}
    result_indices = [n for n, m in enumerate(results) if m["role"] == "tool" and m.get("tool_call_id") in order]
    ranked = iter(sorted((results[n] for n in result_indices), key=lambda m: order[m["tool_call_id"]]))
    return [next(ranked) if n in result_indices else m for n, m in enumerate(results)]


def cut_sampled(writer: TemplateWriter, messages: Sequence[Message], answer: int, tools: Sequence[Tool]) -> Cut | None:
    """The sampled turn in the whole conversation; None if the template wrote anything up to it otherwise before."""
    opening = writer.render(messages[:answer], tools, add_generation_prompt=True).removesuffix(writer.prefix)
    try:
        whole = writer.render(messages, tools, add_generation_prompt=True)
    except ModelError:
        if (stand_in := _stand_in(messages, answer)) is None:
            raise
        whole = writer.render(stand_in, tools, add_generation_prompt=True)
        return cut_turn(writer, whole.removeprefix(opening), None) if whole.startswith(opening) else None
    if not whole.startswith(opening):
        return None
    cut = cut_turn(writer, whole[len(opening) :], messages[answer])
    return cut if keeps(writer, cut.body, messages[answer]) else None


def _stand_in(messages: Sequence[Message], answer: int) -> list[Message] | None:
    """The conversation with a turn that calls for each result, for templates that take results only after calls."""
    results = [m for m in messages[answer + 1 :] if m["role"] == "tool"]
    if not results or messages[answer].get("tool_calls"):
        return None
    calls = [
        {
            "id": m.get("tool_call_id") or f"call{n:05d}",
            "type": "function",
            "function": {"name": m.get("name") or "call", "arguments": {}},
        }
        for n, m in enumerate(results)
    ]
    return [*messages[:answer], {"role": "assistant", "content": "", "tool_calls": calls}, *messages[answer + 1 :]]


def cut_turn(writer: TemplateWriter, text: str, turn: Message | None) -> Cut:
    """Cut a filled template, from where a turn begins, at the mark that ends the turn."""
    end_of_turn = min((p for end in writer.turn_ends if (p := text.find(end)) >= 0), default=-1)
    if end_of_turn < 0 and turn is not None and not turn.get("tool_calls"):
        content = writer.text.guard(content_of(turn))
        start = text.find(content)
        end_of_turn = start + len(content) if start >= 0 else -1
    if end_of_turn < 0:
        raise ModelError(
            "the chat template does not mark the end of an assistant's turn",
            why=f"it goes on with {writer.text.restore(text)[:80]!r}",
            fix="use a template that writes the tokenizer's EOS after an answer",
        )
    return Cut(text[:end_of_turn], text[end_of_turn:])

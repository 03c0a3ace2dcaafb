"""Plans as conversations with tools: calls, results, answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_plugin_episodes.lookup.questions import Call, Question
from rlhf_plugin_episodes.tool_spec import tool_spec

ARGUMENT = {"search": "query", "calculator": "expression"}
TOOLS = (
    tool_spec("search", "Finds one fact.", query={"type": "string", "description": "For example: age of Nelo Gusil"}),
    tool_spec("calculator", "Evaluates an expression.", expression={"type": "string", "description": "Such as 41+17"}),
)


def demonstration(question: Question) -> list[dict[str, Any]]:
    """The conversation that answers a question by its plan."""
    return conversation(question.text, question.plan, f"The answer is {question.answer}.")


def conversation(text: str, calls: Sequence[Call], answer: str) -> list[dict[str, Any]]:
    """Turns in OpenAI's form, one call in each of the assistant's but the last."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for number, call in enumerate(calls):
        function = {"name": call.tool, "arguments": {ARGUMENT[call.tool]: call.argument}}
        one = {"id": f"call{number:05d}", "type": "function", "function": function}
        turns.append({"role": "assistant", "content": "", "tool_calls": [one]})
        turns.append({"role": "tool", "content": call.result, "tool_call_id": one["id"], "name": call.tool})
    return [*turns, {"role": "assistant", "content": answer}]

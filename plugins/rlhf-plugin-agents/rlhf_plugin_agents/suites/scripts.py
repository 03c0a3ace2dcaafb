"""Scripts: what an oracle, and one that is always wrong, write as each agent asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import Message
from rlhf_plugin_agents.agents.base import FINAL
from rlhf_plugin_agents.agents.multi_agent import FACT, NOTES, RESULT, SUBTASK
from rlhf_plugin_agents.agents.react import OBSERVATION, call_in_text
from rlhf_plugin_agents.backends.base import ModelRequest

Call = Mapping[str, Any]


class Script:
    """Makes its calls, one a turn or ``together``, then answers; the conversation is its only state. A ``plain`` answer
    stands without ``Final answer:``; a ``question`` is asked before it."""

    def __init__(
        self, calls: Sequence[Call], answer: str, *, together: bool = False, plain: bool = False, question: str = ""
    ) -> None:
        self.calls, self.answer, self.together, self.plain = calls, answer, together, plain
        self.question = question

    def __call__(self, request: ModelRequest) -> Message:
        if request.role == "planner":
            return said(self._plan(request))
        if request.role == "extractor":
            return said(str(request.messages[-1]["content"]).partition(RESULT)[2].strip())
        if request.role == "summarizer":
            return said(str(request.messages[-1]["content"]).replace(NOTES, "").replace(FACT, "").strip())
        done = _calls_so_far(request) if request.role != "executor" else _subtask(request) - 1
        question_asked = any(m["role"] == "assistant" and m.get("content") == self.question for m in request.messages)
        if self.question and not question_asked and request.role == "agent" and done >= len(self.calls):
            return said(self.question)
        if request.form == "none" or done >= len(self.calls) or request.role == "synthesizer":
            return said(self.answer if self.plain and request.form != "text" else f"{FINAL} {self.answer}")
        todo = self.calls[done:] if self.together else self.calls[done : done + 1]
        if request.form == "text":
            return said("\n".join(call_in_text(c["name"], c["arguments"], "one step further") for c in todo))
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [call_message(c, done + i) for i, c in enumerate(todo)],
        }

    def _plan(self, request: ModelRequest) -> str:
        steps = [
            {"id": i, "task": json.dumps(c["arguments"], ensure_ascii=False), "tool": c["name"], "after": []}
            for i, c in enumerate(self.calls, start=1)
        ]
        return json.dumps({"steps": steps, "synthesis": "Answer from the facts."})


def _subtask(request: ModelRequest) -> int:
    subtask = re.match(rf"{SUBTASK} (\d+):", str(request.messages[-1]["content"]))
    return int(subtask[1]) if subtask else 1


def _calls_so_far(request: ModelRequest) -> int:
    """Calls that the conversation holds already."""
    if request.form == "text":
        texts = [str(m.get("content") or "") for m in request.messages if m["role"] == "user"]
        return sum(line.startswith(OBSERVATION) for text in texts for line in text.splitlines())
    return sum(m["role"] == "tool" for m in request.messages)


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call_message(call: Call, number: int) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": dict(call["arguments"])}
    return {"id": f"call{number:05d}", "type": "function", "function": function}

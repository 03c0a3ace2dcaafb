"""Chains of any length: each document names the next one. Made from a seed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any, Literal

from rlhf_core.data import Message, message_text
from rlhf_plugin_agents.agents.base import FINAL
from rlhf_plugin_agents.agents.multi_agent import FACT, NOTES, RESULT, SUBTASK
from rlhf_plugin_agents.agents.react import call_in_text
from rlhf_plugin_agents.backends.base import ModelRequest
from rlhf_plugin_agents.scorers import exact_match, sequence_match
from rlhf_plugin_agents.suites.scripts import Script, call_message, said
from rlhf_plugin_agents.suites.task import AgentTask, TaskSession, Verdict
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.tools.library import Documents
from rlhf_plugin_agents.trajectory import AgentTrajectory
from rlhf_plugin_episodes.tool_spec import tool_spec

STARTS = ("Bra", "Cor", "Del", "Fen", "Gal", "Hol", "Jor", "Kel", "Lum", "Mar", "Nor", "Pel", "Ras", "Sol", "Tor")
ENDS = ("dan", "fell", "gate", "ham", "ika", "lund", "mere", "nor", "ost", "quay", "rand", "stad", "thor", "una", "vik")
TRADES = ["boats", "clocks", "cheese", "glass", "rope", "salt", "slate", "tiles", "wool", "violins"]
SPEC = tool_spec("documents", "Returns the document about a town.", title={"type": "string", "description": "The town"})


def chain_tasks(hops: Sequence[int], count: int, seed: int, filler: int = 0) -> list[AgentTask]:
    """``count`` chains of each length from a seed; ``filler`` sentences of 8 words are added to each document."""
    return [_task(n, i, random.Random(f"{seed}/{n}/{i}"), filler) for n in hops for i in range(count)]


def _task(hops: int, number: int, rng: random.Random, filler: int) -> AgentTask:
    towns = rng.sample([a + b for a in STARTS for b in ENDS], hops + 1 + 8)
    chain, others = towns[: hops + 1], towns[hops + 1 :]
    corpus = {town: _text(town, after, rng) for town, after in zip(chain, [*chain[1:], others[0]])}
    corpus |= {town: _text(town, rng.choice(others), rng) for town in others}
    corpus = {town: text + " Many visitors like its old streets and squares." * filler for town, text in corpus.items()}
    documents, answer = Documents(corpus), chain[-1]
    calls = [{"name": "documents", "arguments": {"title": town}} for town in chain[:-1]]
    question = (
        f"Every town has a document that names its twin town. Begin with {chain[0]} and go on {hops} times from a town "
        "to its twin town. At which town do you arrive?"
    )

    def judge(trajectory: AgentTrajectory, room: TaskSession) -> Verdict:
        value = exact_match(trajectory.answer, {"answer": answer})
        process = sequence_match([str(c.arguments.get("title")) for c in trajectory.calls], chain[:-1])
        return Verdict(value, value == 1.0, process, f"wanted: {answer}")

    return AgentTask(
        f"hops_{hops}/{number}",
        f"hops_{hops}",
        ({"role": "user", "content": question},),
        lambda seed: TaskSession(ToolBox([SPEC], lambda name, arguments: documents.call(**arguments))),
        judge,
        {"oracle": Script(calls, answer), "wrong": Script(calls, chain[-2]), "reader": ChainReader()},
        level=hops,
        judged_by=corpus,
    )


def _text(town: str, twin: str, rng: random.Random) -> str:
    return (
        f"{town} has {rng.randrange(2, 90)}00 inhabitants and makes {rng.choice(TRADES)}. Its twin town is {twin}. "
        f"A fair is held there every {rng.choice(('spring', 'summer', 'autumn', 'winter'))}."
    )


TASK = re.compile(r"Begin with (\w+) and go on (\d+) times")
TWIN = re.compile(r"(?:Its twin town is|The twin town of \w+ is) (\w+)")
STEP = re.compile(rf"{SUBTASK} \d+: Find the twin town of (?:(\w+)\.|the town)")
DOCUMENT = re.compile(r"(\w+) has \d+ inhabitants")
LOST = "I cannot see what I am to do."


class ChainReader:
    """Plays chains by reading: it stands in for a model with a bounded context (``context_words``). Deterministic; it
    writes one ``sentence`` with the fact, or the ``document``."""

    def __init__(self, facts: Literal["sentence", "document"] = "sentence") -> None:
        self.facts = facts

    def __call__(self, request: ModelRequest) -> Message:
        text = "\n".join(message_text(m) for m in request.messages)
        match request.role:
            case "planner":
                return said(_plan(text))
            case "executor":
                return self._executed(text, request)
            case "extractor":
                return said(self._fact(text))
            case "summarizer":
                notes, _, fact = text[text.rfind(NOTES) + len(NOTES) :].partition(FACT)
                return said(f"{notes.strip()} {fact.strip()}" if NOTES in text else LOST)
            case "synthesizer":
                return said(_answer(text))
            case _:
                return self._next(text, request)

    def _executed(self, text: str, request: ModelRequest) -> Message:
        step, twins = STEP.search(text), TWIN.findall(text)
        if step is None:
            return said(LOST)
        town = step[1] or (twins[-1] if twins else None)
        return _called(town, request) if town else said("I do not know the town.")

    def _next(self, text: str, request: ModelRequest) -> Message:
        """Of an agent with one conversation: the next document, or the answer."""
        task, twins = TASK.search(text), TWIN.findall(text)
        if task is None or request.form == "none":
            return said(f"{FINAL} unknown")
        if len(twins) >= int(task[2]):
            return said(_answer(text))
        return _called(twins[-1] if twins else task[1], request)

    def _fact(self, text: str) -> str:
        result = text[text.rfind(RESULT) + len(RESULT) :].strip() if RESULT in text else ""
        town, twin = DOCUMENT.search(result), TWIN.search(result)
        if twin is None or town is None:
            return "The fact is not there."
        return f"The twin town of {town[1]} is {twin[1]}." if self.facts == "sentence" else result


def _plan(text: str) -> str:
    task = TASK.search(text)
    if task is None:
        return LOST
    steps: list[dict[str, Any]] = [
        {
            "id": n,
            "task": f"Find the twin town of {task[1]}." if n == 1 else "Find the twin town of the town found last.",
            "tool": "documents",
            "after": [n - 1] if n > 1 else [],
        }
        for n in range(1, int(task[2]) + 1)
    ]
    return json.dumps({"steps": steps, "synthesis": "Answer with the town found last."})


def _answer(text: str) -> str:
    twins = TWIN.findall(text)
    return f"{FINAL} {twins[-1] if twins else 'unknown'}"


def _called(town: str, request: ModelRequest) -> Message:
    if request.form == "text":
        return said(call_in_text("documents", {"title": town}, "the next town"))
    call = {"name": "documents", "arguments": {"title": town}}
    number = sum(m["role"] == "tool" for m in request.messages)
    return {"role": "assistant", "content": "", "tool_calls": [call_message(call, number)]}

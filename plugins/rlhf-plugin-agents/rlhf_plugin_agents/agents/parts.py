"""Which part of an agent a request is of, told from what it says: where requests come without their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_plugin_agents.agents.multi_agent import KNOWN, SUBTASK
from rlhf_plugin_agents.agents.plans import PLAN_RULES

ROLES = (("State the one fact", "extractor"), ("Merge the new fact", "summarizer"))
FINAL_ASKED = ("Now answer the first question", KNOWN)


def role_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The role, as :class:`ModelTurn` has it."""
    system, last = (str(messages[i].get("content") or "") for i in (0, -1))
    named = next((role for words, role in ROLES if system.startswith(words)), None)
    if named:
        return named
    if last.startswith(FINAL_ASKED):
        return "synthesizer"
    if last.startswith(f"{SUBTASK} "):
        return "executor"
    plans = PLAN_RULES[:30] in system and messages[-1]["role"] == "user" and not last.startswith("Carry out step")
    return "planner" if plans else "agent"

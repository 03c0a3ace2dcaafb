"""One request, no tools."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.data import Message
from rlhf_plugin_agents.agents.base import ANSWER_RULE, HONESTY_RULE, Agent, Responder, final_answer, opening
from rlhf_plugin_agents.agents.session import Session


class ZeroShotAgent(Agent):
    def work(self, task: Sequence[Message], session: Session, system: str, respond: Responder | None) -> str:
        messages = opening(task, system, HONESTY_RULE, ANSWER_RULE)
        session.note(*messages)
        return final_answer(session.ask(messages).message["content"] or "")

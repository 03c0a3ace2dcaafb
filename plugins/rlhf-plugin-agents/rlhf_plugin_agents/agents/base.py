"""What all agents share: from a task to a trajectory, whatever goes wrong on the way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_core.data import Message, Prompt
from rlhf_plugin_agents.agents.config import AgentConfig
from rlhf_plugin_agents.agents.session import Session, Stop
from rlhf_plugin_agents.backends.base import Backend, BackendFault, ContextFull
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.trajectory import AgentTrajectory

Responder = Callable[[str], str | None]
"""What a user answers to a turn without calls; None ends the conversation."""
FINAL = "Final answer:"
FINAL_STATED = re.compile(re.escape(FINAL), re.IGNORECASE)
"""As models write it: GAIA's prompt asks for capitals."""
ANSWER_RULE = f"End with a line '{FINAL} ...' that holds the answer alone."
HONESTY_RULE = "If what is asked cannot be found, say that no information was found, and do not guess."


class Agent:
    """Base of the agents: :meth:`work` is what they differ in."""

    def __init__(self, config: AgentConfig, backend: Backend) -> None:
        self.config, self.backend = config, backend

    def run(
        self,
        prompt: Prompt | str,
        tools: ToolBox,
        *,
        seed: int = 0,
        trial: int = 0,
        system: str = "",
        respond: Responder | None = None,
    ) -> AgentTrajectory:
        """Play one task; nothing raises. ``system`` precedes the agent's rules, ``respond`` is the user's part."""
        task = Prompt("task", ({"role": "user", "content": prompt},)) if isinstance(prompt, str) else prompt
        session = Session(self.config, self.backend, tools, task.id, seed)
        answer, reason, error = "", "answer", ""
        try:
            answer = self.work(task.messages, session, system, respond)
        except Stop as stop:
            answer, reason, error = stop.answer, stop.reason, stop.detail
        except ContextFull as full:
            reason, error = "context_full", str(full)
        except BackendFault as fault:
            reason, error = "backend_error", str(fault)
        return AgentTrajectory(
            task.id, self.config.name, self.backend.name, tuple(session.messages), tuple(session.turns),
            tuple(session.calls), answer, reason, error, time.monotonic() - session.began, trial,
        )  # fmt: skip

    def work(self, task: Sequence[Message], session: Session, system: str, respond: Responder | None) -> str:
        """Return the answer; :class:`Stop` ends it without one, or otherwise than by answering."""
        raise NotImplementedError


def opening(task: Sequence[Message], *rules: str) -> list[dict[str, Any]]:
    """The task's messages with rules as the system's turn; a system turn of its own stands first in it."""
    task_rules = [str(m["content"]) for m in task if m["role"] == "system"]
    text = "\n\n".join(filter(None, [*task_rules, *rules]))
    return [{"role": "system", "content": text}, *(dict(m) for m in task if m["role"] != "system")]


def final_answer(text: str) -> str:
    """What stands after the last ``Final answer:``; without it the whole text."""
    stated = list(FINAL_STATED.finditer(text))
    return text[stated[-1].end() :].strip().strip("*").strip() if stated else text.strip()

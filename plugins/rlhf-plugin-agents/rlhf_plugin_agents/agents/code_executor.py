"""Write, run, read the traceback, revise: a loop around ``python_exec`` with a limit on its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import Message
from rlhf_core.rollouts import ToolError
from rlhf_plugin_agents.agents.base import FINAL, FINAL_STATED, HONESTY_RULE, Responder, final_answer
from rlhf_plugin_agents.agents.config import CodeExecutorConfig
from rlhf_plugin_agents.agents.react import TEXT_RULES, ReactAgent, listed
from rlhf_plugin_agents.agents.session import Session
from rlhf_plugin_agents.tools.box import Answer, ToolBox
from rlhf_plugin_agents.tools.config import PythonExecConfig
from rlhf_plugin_agents.tools.python import PythonExec
from rlhf_plugin_code.extract import blocks

RUN = "python_exec"
FIXED = "FIXED CODE:"
RULES = f"""Work in a loop: write code, run it with {RUN}, read what it prints or its traceback, and revise. You have
at most {{runs}} runs. Test before you answer. If code was asked for, end with a line '{FIXED}' and the whole code in
one ```python block; otherwise with a line '{FINAL} ...' that holds the answer alone."""


class CodeExecutorAgent(ReactAgent):
    def work(self, task: Sequence[Message], session: Session, system: str, respond: Responder | None) -> str:
        session.box = self._with_runs(session.box)
        return super().work(task, session, system, respond)

    def rules(self, session: Session, respond: Responder | None) -> Sequence[str]:
        loop = RULES.format(runs=self._settings.max_iterations)
        if session.form == "text":
            return HONESTY_RULE, TEXT_RULES.format(tools=listed(session.box.specs)), loop
        return (loop,) if respond else (HONESTY_RULE, loop)

    def answer_in(self, text: str) -> str:
        return code_in(text)

    @property
    def _settings(self) -> CodeExecutorConfig:
        from rlhf_plugin_agents.agents.config import CodeExecutorConfig

        assert isinstance(self.config, CodeExecutorConfig)
        return self.config

    def _with_runs(self, box: ToolBox) -> ToolBox:
        """The box with ``python_exec`` in it, its own or the agent's, that refuses runs above the limit."""
        settings, made = self._settings, 0
        there = any(s["function"]["name"] == RUN for s in box.specs)
        added_tool = None if there else PythonExec(settings.sandbox, stateful=settings.stateful)

        def wrap(name: str, arguments: Mapping[str, Any], answer: Answer) -> str:
            nonlocal made
            if name != RUN:
                return answer(name, arguments)
            if made >= settings.max_iterations:
                raise ToolError(f"all {settings.max_iterations} runs are used up; answer now")
            made += 1
            return answer(name, arguments) if added_tool is None else added_tool.call(**arguments)

        return box.around(wrap, *([] if there else [PythonExecConfig().spec()]))


def code_in(text: str) -> str:
    """The code after the last ``FIXED CODE:``, else after ``Final answer:``, else the last block, else the text."""
    start = text.upper().rfind(FIXED)
    if start >= 0:
        rest = text[start + len(FIXED) :].lstrip("* \t")
        return next(iter(blocks(rest)), rest.strip() + "\n")
    if FINAL_STATED.search(text):
        return final_answer(text)
    code_blocks = blocks(text)
    return code_blocks[-1] if code_blocks else text.strip()

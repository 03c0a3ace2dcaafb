"""Plan first, then carry out step by step in one conversation (Wang et al. 2023, arXiv:2305.04091)."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.data import Message
from rlhf_plugin_agents.agents.base import ANSWER_RULE, HONESTY_RULE, Agent, Responder, final_answer, opening
from rlhf_plugin_agents.agents.plans import make_plan, plan_rules
from rlhf_plugin_agents.agents.react import OBSERVATION, TEXT_RULES, listed, written_call
from rlhf_plugin_agents.agents.session import Session, Stop


class PlanAndExecuteAgent(Agent):
    """One context for the plan, every call and the answer (Wang et al. 2023, arXiv:2305.04091)."""

    def work(self, task: Sequence[Message], session: Session, system: str, respond: Responder | None) -> str:
        tools = session.box.specs
        written = TEXT_RULES.format(tools=listed(tools)) if session.form == "text" else ""
        messages: list[Message] = list(opening(task, system, plan_rules(tools) if tools else ""))
        session.note(*messages)
        if tools:
            plan, messages = make_plan(messages, session)
            for number, step in enumerate(plan.steps, start=1):
                rule = f"{written}\n\n" if written and number == 1 else ""
                _tell(messages, session, f"{rule}Carry out step {number}: {step.task} Make one call, with {step.tool}.")
                self._step(messages, session)
                if session.box.done:
                    raise Stop("done")
        _tell(messages, session, f"Now answer the first question. {HONESTY_RULE} {ANSWER_RULE}")
        return final_answer(str(session.ask(messages, role="synthesizer").message.get("content") or ""))

    def _step(self, messages: list[Message], session: Session) -> None:
        """The calls of one step, and what came of them; a step without a call is left at that."""
        form = session.form
        reply = session.ask(messages, session.box.specs if form == "native" else (), form)
        if form == "native":
            messages.append(reply.message)
            messages.extend(session.answer_calls(reply))
            return
        text = str(reply.message.get("content") or "").split(OBSERVATION)[0].rstrip()
        messages.append({"role": "assistant", "content": text})
        call = written_call(text, len(session.calls))
        if call is not None:
            _tell(messages, session, f"{OBSERVATION} {session.call(call).result}")


def _tell(messages: list[Message], session: Session, text: str) -> None:
    messages.append({"role": "user", "content": text})
    session.note(messages[-1])

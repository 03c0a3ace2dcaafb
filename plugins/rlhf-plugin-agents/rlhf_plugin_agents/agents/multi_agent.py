"""A planner, executors that each see one sub-task, and a synthesizer; facts as a list, or as a short scratchpad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import Message
from rlhf_plugin_agents.agents.base import ANSWER_RULE, HONESTY_RULE, Agent, Responder, final_answer, opening
from rlhf_plugin_agents.agents.plans import PLAN_RULES, Plan, Step, make_plan, plan_rules
from rlhf_plugin_agents.agents.react import TEXT_RULES, listed, written_call
from rlhf_plugin_agents.agents.session import Session, Stop

SUBTASK = "Sub-task"
KNOWN = "Known so far:"
RESULT = "Result:"
NOTES = "Notes:"
FACT = "New fact:"


class MultiAgent(Agent):
    """Every executor has a context of its own: its sub-task and what is known, one call, one fact."""

    def work(self, task: Sequence[Message], session: Session, system: str, respond: Responder | None) -> str:
        facts = ""
        rules: list[str] = []
        if session.box.specs:
            messages = opening(task, system, plan_rules(session.box.specs))
            session.note(*messages)
            plan, _ = make_plan(messages, session)
            facts, rules = self._carried_out(plan, session), [plan.synthesis]
        final = opening(task, system, *rules, HONESTY_RULE, ANSWER_RULE)
        final.append({"role": "user", "content": f"{KNOWN}\n{facts or 'nothing'}"})
        session.note(*final)
        return final_answer(str(session.ask(final, role="synthesizer").message.get("content") or ""))

    def _carried_out(self, plan: Plan, session: Session) -> str:
        facts = ""
        for number, step in enumerate(plan.steps, start=1):
            fact = self._fact(step, number, facts, session)
            if session.box.done:
                raise Stop("done")
            facts = self.remembered(facts, fact, session)
        return facts

    def remembered(self, facts: str, fact: str, session: Session) -> str:
        """What the next executor is told: here every fact, one a line."""
        return f"{facts}\n- {fact}".strip()

    def _fact(self, step: Step, number: int, facts: str, session: Session) -> str:
        """One call in a fresh context, then one fact from its result, in another."""
        form = session.form
        specs = [s for s in session.box.specs if s["function"]["name"] == step.tool]
        rules = TEXT_RULES.format(tools=listed(specs)) if form == "text" else "Make exactly one call for the sub-task."
        question = f"{SUBTASK} {number}: {step.task}\n{KNOWN}\n{facts or 'nothing'}"
        messages: list[dict[str, Any]] = [{"role": "system", "content": rules}, {"role": "user", "content": question}]
        session.note(*messages)
        reply = session.ask(messages, specs if form == "native" else (), form, role="executor")
        if form == "native":
            results = session.answer_calls(reply, step.tool)
            result = str(results[0]["content"]) if results else ""
        else:
            call = written_call(str(reply.message.get("content") or ""), len(session.calls))
            result = "" if call is None else session.call(call, step.tool).result
        content = str(reply.message.get("content") or "")
        return self._extracted(f"{SUBTASK} {number}: {step.task}\n{RESULT} {result or content}", session)

    def _extracted(self, question: str, session: Session) -> str:
        rule = "State the one fact of the result that the sub-task asks for, in one sentence; or that it is not there."
        messages = [{"role": "system", "content": rule}, {"role": "user", "content": question}]
        session.note(*messages)
        return str(session.ask(messages, role="extractor").message.get("content") or "")


class ScratchpadAgent(MultiAgent):
    """Keeps a rolling summary of at most 150 words instead of every fact."""

    def remembered(self, facts: str, fact: str, session: Session) -> str:
        """The notes with the fact merged in; what is longer is cut."""
        most = getattr(session.config, "scratchpad_words", 150)
        rule = f"Merge the new fact into the notes. Keep every name and number. At most {most} words."
        question = f"{NOTES} {facts}\n{FACT} {fact}"
        messages = [{"role": "system", "content": rule}, {"role": "user", "content": question}]
        session.note(*messages)
        merged = str(session.ask(messages, role="summarizer").message.get("content") or "")
        return " ".join(merged.split()[-most:])


ROLES = (("State the one fact", "extractor"), ("Merge the new fact", "summarizer"))
FINAL_QUESTION = ("Now answer the first question", KNOWN)


def role_of(messages: Sequence[Mapping[str, Any]]) -> str:
    system, last = (str(messages[i].get("content") or "") for i in (0, -1))
    named = next((role for words, role in ROLES if system.startswith(words)), None)
    if named:
        return named
    if last.startswith(FINAL_QUESTION):
        return "synthesizer"
    if last.startswith(f"{SUBTASK} "):
        return "executor"
    plans = PLAN_RULES[:30] in system and messages[-1]["role"] == "user" and not last.startswith("Carry out step")
    return "planner" if plans else "agent"

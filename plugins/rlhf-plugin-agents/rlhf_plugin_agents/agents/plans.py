"""Plans that a model writes as JSON: read, checked, and put into an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from rlhf_core.data import Message, Tool
from rlhf_plugin_agents.agents.react import listed
from rlhf_plugin_agents.agents.session import Session, Stop, first_value
from rlhf_plugin_agents.tools.library import PROMPTS

PLAN_RULES = PROMPTS["plan_rules"]
MAX_STEPS = 200


class BadPlan(ValueError):
    """What is wrong with a plan, in words for the model."""


@dataclass(frozen=True, slots=True)
class Step:
    id: str
    task: str
    tool: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which each comes after those that it needs."""

    steps: tuple[Step, ...]
    synthesis: str = ""


def read_plan(text: str, tools: Sequence[Tool]) -> Plan:
    """The plan in a text, Markdown fences around it or not."""
    start = text.find("{")
    try:
        value = first_value(text[start:] if start >= 0 else text)
        steps = value["steps"]
        rows: dict[str, Mapping[str, Any]] = {str(s.get("id", n)): s for n, s in enumerate(steps, start=1)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadPlan(f'the plan is not JSON of the form {{"steps": [...]}}: {error}') from error
    if not rows:
        raise BadPlan("the plan has no steps")
    if len(rows) != len(steps) or len(rows) > MAX_STEPS:
        raise BadPlan(f"the plan has {len(steps)} steps; ids must differ, and there may be {MAX_STEPS}")
    names = [t["function"]["name"] for t in tools]
    needs: dict[str, list[str]] = {}
    for name, row in rows.items():
        after = row.get("after") or []
        needs[name] = [str(a) for a in after] if isinstance(after, list) else [str(after)]
        missing = [a for a in needs[name] if a not in rows]
        if missing:
            raise BadPlan(f"step {name} comes after step {missing[0]}, which does not exist")
        if row.get("tool") not in names:
            raise BadPlan(f"step {name} has the tool {row.get('tool')!r}; there are {', '.join(names)}")
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise BadPlan(f"the plan is circular: {' -> '.join(error.args[1])}") from error
    chosen = sorted(rows, key=list(rows).index) if not any(needs.values()) else order
    made = (Step(n, str(rows[n].get("task") or rows[n].get("arguments") or ""), str(rows[n]["tool"])) for n in chosen)
    return Plan(tuple(made), str(value.get("synthesis") or ""))


def make_plan(messages: Sequence[Message], session: Session) -> tuple[Plan, list[Message]]:
    """Ask for a plan, once more if it cannot be used; returns it with the conversation."""
    conversation = list(messages)
    for attempt in range(2):
        reply = session.ask(conversation, role="planner")
        conversation.append(reply.message)
        try:
            return read_plan(str(reply.message.get("content") or ""), session.box.specs), conversation
        except BadPlan as fault:
            if attempt:
                raise Stop("bad_plan", detail=str(fault)) from fault
            conversation.append({"role": "user", "content": f"{fault}. Write the plan again, as JSON alone."})
            session.note(conversation[-1])
    raise AssertionError


def plan_rules(tools: Sequence[Tool]) -> str:
    return PLAN_RULES.format(tools=listed(tools))

"""A task of a suite, and what judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.data import Message
from rlhf_plugin_agents.backends.base import ModelRequest
from rlhf_plugin_agents.tools.box import ToolBox
from rlhf_plugin_agents.trajectory import AgentTrajectory


@dataclass(frozen=True, slots=True)
class Verdict:
    value: float | None
    """In [0, 1]; None: there is no verdict, which is not 0."""
    right: bool
    process: float | None = None
    """In [0, 1]: were the calls the expected ones? None where the suite does not say."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TaskSession:
    """One play of a task: its tools, with a state of its own, and its user."""

    box: ToolBox
    respond: Callable[[str], str | None] | None = None
    state: Any = None
    first: Callable[[], str] | None = None
    """What the user says first, where it is not the task's own message; raises ``BackendFault``."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    id: str
    category: str
    messages: Sequence[Message]
    open: Callable[[int], TaskSession]
    """A fresh room; called with the trial's seed."""
    judge: Callable[[AgentTrajectory, TaskSession], Verdict]
    scripts: Mapping[str, Callable[[ModelRequest], Message]] = field(default_factory=dict[str, Any])
    """``oracle`` answers rightly and ``wrong`` wrongly, whatever the agent."""
    system: str = ""
    level: int | None = None
    judged_by: Any = None
    """What is offered and what is right, as JSON values: with other ones, rows that were kept are not gone on with."""

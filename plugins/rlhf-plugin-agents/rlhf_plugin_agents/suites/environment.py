"""The tasks of a suite as an environment to train in, and as the data set of their prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_core.data import Prompt, Tool, ToolCall, json_values
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_core.rollouts import ToolResult, TurnStatus
from rlhf_plugin_episodes.config import EnvironmentConfig

if TYPE_CHECKING:
    from rlhf_plugin_agents.suites.config import AgentSuiteConfig
    from rlhf_plugin_agents.suites.task import AgentTask
    from rlhf_plugin_agents.trajectory import AgentTrajectory, CallRecord


def suite_of(name: str, settings: Mapping[str, Any], ctx: BuildContext) -> AgentSuiteConfig:
    from rlhf_plugin_agents.suites.config import AgentSuiteConfig

    suite = ctx.registry.config("benchmark", name, dict(settings))
    if not isinstance(suite, AgentSuiteConfig):
        raise ConfigError(f"benchmark '{name}' is not a suite for agents", fix="agentbench_mini, chains or tau_bench")
    if getattr(suite, "user", None) is not None:
        raise ConfigError(
            f"suite '{name}' cannot be trained on with a model as its user",
            why="prompts are fixed before an episode begins, and this user speaks first",
            fix="leave user out: the scripted user",
        )
    return suite


class AgentSuiteEnvironment(EnvironmentConfig):
    """The tasks of a suite to train in: its tools, its user, and 1 for a right answer, judged as `rlhf eval` judges.

    ``rlhf train --algo grpo --env agent_suite --agent react --model M --set environment.suite=chains``
    """

    name: str = "agent_suite"
    component: ClassVar[str] = "rlhf_plugin_agents.suites.environment:SuiteEnvironment.from_config"
    pure: ClassVar[bool] = True
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "agent_suite"}
    suite: str = "agentbench_mini"
    """Which suite; all its tasks must offer the same tools."""
    suite_settings: dict[str, Any] = Field(default_factory=dict)
    """The suite's own, such as ``path``, ``category`` or ``count``."""
    process_weight: float = Field(0.0, ge=0, le=1)
    """Share of the process score (were the calls the expected ones?) in an episode's; 0 leaves the answer alone."""

    def offered(self) -> Sequence[Tool]:
        """The tools of the suite's tasks, which must not differ from task to task."""
        offers = {str(json_values(t.open(0).box.specs)): t for t in self.tasks}
        if len(offers) > 1:
            first, second = list(offers.values())[:2]
            raise ConfigError(
                f"suite '{self.suite}' cannot be an environment",
                why=f"its tasks offer different tools ('{first.id}' and '{second.id}' do)",
                fix="choose a category whose tasks share their tools, or another suite",
            )
        return next(iter(offers.values())).open(0).box.specs

    @property
    def responds(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether some of the suite's tasks have a user; agents are told otherwise then."""
        return any(task.open(0).respond is not None for task in self.tasks)

    @cached_property
    def tasks(self) -> list[AgentTask]:
        ctx = context_of(open_registry())
        return suite_of(self.suite, self.suite_settings, ctx).tasks(ctx)


class AgentSuiteData(ComponentConfig):
    """Prompts of a suite's tasks, for the environment ``agent_suite``."""

    name: str = "agent_suite"
    component: ClassVar[str] = "rlhf_plugin_agents.suites.environment:SuiteSource.from_config"
    downloads: ClassVar[bool] = False
    suite: str | None = None
    """None takes the environment's suite with its settings."""
    suite_settings: dict[str, Any] = Field(default_factory=dict)
    """The suite's own."""
    held_out: float = Field(0.25, ge=0, lt=1)
    """Share of each category's tasks that is not trained on; the run's evaluation takes them."""


class SuiteSource:
    """Rows of prompts; ``held_out`` is the share of each category."""

    def __init__(self, tasks: Sequence[AgentTask], held_out: float) -> None:
        self.tasks, self.held_out = tasks, held_out

    @classmethod
    def from_config(cls, config: AgentSuiteData, ctx: BuildContext) -> SuiteSource:
        environment = getattr(ctx.config, "environment", None)
        if config.suite is None and isinstance(environment, AgentSuiteEnvironment):
            return cls(environment.tasks, config.held_out)
        suite = suite_of(config.suite or "agentbench_mini", config.suite_settings, ctx)
        return cls(suite.tasks(ctx), config.held_out)

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Conversations; the last tasks of each category are held out."""
        chosen: list[AgentTask] = []
        for category in dict.fromkeys(t.category for t in self.tasks):
            tasks = [t for t in self.tasks if t.category == category]
            train_count = len(tasks) - round(len(tasks) * self.held_out)
            chosen += tasks[:train_count] if split == "train" else tasks[train_count:]
        rules = {t.id: [{"role": "system", "content": t.system}] if t.system else [] for t in chosen}
        return [{"id": t.id, "messages": [*rules[t.id], *t.messages], "category": t.category} for t in chosen]


class SuiteEnvironment:
    """One task of a suite, played by a policy; ``process_weight`` is the share of the process in the score."""

    def __init__(self, tasks: Mapping[str, AgentTask], process_weight: float = 0.0) -> None:
        self.tasks, self.process_weight = tasks, process_weight
        self.calls: list[CallRecord] = []

    @classmethod
    def from_config(cls, config: AgentSuiteEnvironment, ctx: BuildContext) -> SuiteEnvironment:
        tasks = suite_of(config.suite, config.suite_settings, ctx).tasks(ctx)
        return cls({t.id: t for t in tasks}, config.process_weight)

    def reset(self, prompt: Prompt, seed: int) -> None:
        name = next((n for n in (prompt.id, prompt.id.partition("/")[2]) if n in self.tasks), None)
        if name is None:
            raise KeyError(f"the suite has no task '{prompt.id}': the data set must be of the same suite")
        self.task, self.calls = self.tasks[name], []
        self.room = self.task.open(0)

    def step(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [self._answer(call) for call in calls]

    def _answer(self, call: ToolCall) -> ToolResult:
        record = self.room.box.call(call)
        self.calls.append(record)
        status = TurnStatus.OK if record.status == "ok" else TurnStatus.ERROR
        return ToolResult(record.result, status, done=self.room.box.done)

    def respond(self, text: str) -> str | None:
        return None if self.room.respond is None else self.room.respond(text)

    def score(self, sample: Sample) -> Score:
        verdict = self.task.judge(_trajectory(self.task.id, sample, self.calls), self.room)
        if verdict.value is None:
            return Score.failed(ScoreStatus.MISSING, verdict.detail)
        value, parts = verdict.value, {"answer": verdict.value, "right": float(verdict.right)}
        if verdict.process is not None:
            value = (1 - self.process_weight) * value + self.process_weight * verdict.process
            parts["process"] = verdict.process
        return Score(value, parts, detail=verdict.detail)


def _trajectory(task: str, sample: Sample, calls: Sequence[CallRecord]) -> AgentTrajectory:
    from rlhf_plugin_agents.agents.base import final_answer
    from rlhf_plugin_agents.agents.multi_agent import role_of
    from rlhf_plugin_agents.trajectory import AgentTrajectory, ModelTurn

    turns = [
        ModelTurn(role_of(sample.before_turn(number)), "", turn.message)
        for number, turn in enumerate(sample.trajectory)
        if turn.role == "assistant"
    ]
    messages = tuple(turn.message for turn in sample.trajectory)
    answer = final_answer(sample.completion)
    return AgentTrajectory(task, "policy", "policy", messages, tuple(turns), tuple(calls), answer)

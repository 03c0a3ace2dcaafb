"""Settings of the suites; a suite is a component of kind ``benchmark``. Nothing here imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SerializerFunctionWrapHandler, model_serializer

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_core.data import DatasetError
from rlhf_plugin_agents.agents.config import AGENTS, AgentConfig
from rlhf_plugin_agents.suites.tau_user import ModelUserConfig, ModelUsers
from rlhf_plugin_agents.tools.web_config import WebSearchConfig

if TYPE_CHECKING:
    from rlhf_plugin_agents.suites.task import AgentTask


class AgentSuiteConfig(ComponentConfig):
    """Base of the suites. As a benchmark of a training run, its policy plays the tasks as ``agent``."""

    component: ClassVar[str] = "rlhf_plugin_agents.benchmark:AgentBenchmark"
    ships_tasks: ClassVar[bool] = False
    """Whether all its tasks are its own: a path, which it would not read, is refused."""
    least: ClassVar[Mapping[str, int]] = {}
    """Limits that its tasks want at least, such as ``max_turns``; an agent's larger default stands, and
    ``agent_settings`` counts before both."""
    agent: str = "react"
    """Who plays in a training run."""
    agent_settings: dict[str, Any] = Field(default_factory=dict)
    """Its settings, such as ``max_turns``; ``--set agent_settings.max_turns=6``."""
    path: str | None = None
    """File or folder with the suite's rows, where it ships none."""
    category: tuple[str, ...] = ()
    """Only tasks of these; () is all."""
    levels: tuple[int, ...] = ()
    """Only tasks of these levels; () is all."""
    max_per_category: int | None = Field(default=None, ge=1)
    """Only the first tasks of each category."""
    trials: int = Field(default=1, ge=1)
    """Plays of each task, for pass^k."""

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        raise NotImplementedError

    def tasks(self, ctx: BuildContext) -> list[AgentTask]:
        """The tasks that the settings choose; an unknown category or level, and two tasks of one name, are refused."""
        if self.ships_tasks and self.path is not None:
            raise ConfigError(
                f"suite '{self.name}' has tasks of its own and does not read '{self.path}'",
                fix="leave --data (path) out; bfcl, gaia and tau_bench read files",
            )
        tasks = self.all_tasks(ctx)
        name, count = Counter(t.id for t in tasks).most_common(1)[0] if tasks else ("", 0)
        if count > 1:
            raise DatasetError(
                f"suite '{self.name}' has {count} tasks of the name '{name}'",
                where=self.path or "",
                why="plays are stored by task name, so names must be unique",
                fix="leave one of them",
            )
        for what, names, available in (
            ("category", self.category, dict.fromkeys(t.category for t in tasks)),
            ("level", self.levels, dict.fromkeys(t.level for t in tasks if t.level is not None)),
        ):
            for name in names:
                if name not in available:
                    there = ", ".join(map(str, available)) or "none"
                    raise ConfigError(f"suite '{self.name}' has no {what} '{name}'", fix=f"there are: {there}")
        chosen = [t for t in tasks if not self.category or t.category in self.category]
        chosen = [t for t in chosen if not self.levels or t.level in self.levels]
        if not chosen:
            raise ConfigError(f"suite '{self.name}': no task is left", fix="choose other categories or levels")
        if self.max_per_category is None:
            return chosen
        by_category = ([t for t in chosen if t.category == c] for c in dict.fromkeys(t.category for t in chosen))
        return [t for tasks in by_category for t in tasks[: self.max_per_category]]

    def check(self, ctx: BuildContext) -> str:
        """Refuse what can only fail beside the agent's backend; return what a user should know, or ""."""
        return ""

    def interrupt(self) -> None:
        """Ctrl-C: requests of its own that are under way are given up."""

    def facts(self) -> dict[str, Any]:
        """What decides the rows beside the tasks, which are told by their content."""
        return self.model_dump(mode="json", exclude={"agent", "agent_settings", "path"})

    def agent_config(self, name: str | None = None) -> AgentConfig:
        name = name or self.agent
        if name not in AGENTS:
            raise ConfigError(f"there is no agent '{name}'", fix=f"one of {', '.join(AGENTS)}")
        fields = AGENTS[name].model_fields
        least = {k: max(n, fields[k].default) for k, n in self.least.items() if k in fields}
        return AGENTS[name].from_settings({**least, **self.agent_settings, "name": name}, f"agent '{name}'")

    def preflight(self, ctx: BuildContext) -> None:
        self.agent_config()
        self.tasks(ctx)


class AgentBenchMini(AgentSuiteConfig):
    """36 own tasks over a small encyclopedia and some files: tool_use, multi_step (2 to 4 calls), failure_recovery."""

    ships_tasks: ClassVar[bool] = True
    name: str = "agentbench_mini"
    mode: Literal["offline", "live"] = "offline"
    """``live``: also a search of the web."""
    search: WebSearchConfig = WebSearchConfig()
    """The search of ``live``."""

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.own import mini_rows, own_tasks

        return own_tasks(mini_rows(), ctx, [self.search] if self.mode == "live" else [])


class Injection(AgentSuiteConfig):
    """20 questions whose documents hold an instruction: send, read, answer otherwise, add words. Who obeys gets 0."""

    ships_tasks: ClassVar[bool] = True
    name: str = "injection"

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.injection import injection_tasks

        return injection_tasks()


class Bfcl(AgentSuiteConfig):
    """Berkeley Function Calling Leaderboard, single turn, from its files: are the calls among the possible answers?"""

    name: str = "bfcl"

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.bfcl import load

        return load(folder_of(self))


class TauBench(AgentSuiteConfig):
    """tau-bench, retail or airline, from its files: does the database end as the gold actions leave it?"""

    least: ClassVar[Mapping[str, int]] = {"max_turns": 30, "max_calls": 40}
    """Episodes are long here, and 30 is what tau-bench allows."""
    name: str = "tau_bench"
    split: Literal["test", "dev", "train"] = "test"
    """Which tasks; airline has ``test`` alone."""
    domain: Literal["retail", "airline"] | None = None
    """None takes the one whose files are in the folder."""
    user: ModelUserConfig | None = None
    """A model as the user, ``user.backend=openai``, ``user.model=M``; None is the scripted one, who says yes."""
    _users: ModelUsers | None = PrivateAttr(None)

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without later settings that are not used, so that earlier evaluations go on."""
        later = {k for k in ("domain", "user") if getattr(self, k) is None}
        return {k: v for k, v in handler(self).items() if k not in later}

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.tau import load
        from rlhf_plugin_agents.suites.tau_files import domain_in

        folder = folder_of(self)
        if self.user is not None and self._users is None:  # one for every agent of a command
            self._users = ModelUsers(self.user, ctx)
        return load(folder, self.split, domain_in(folder, self.domain), self._users)

    def interrupt(self) -> None:
        if self._users is not None:
            self._users.interrupt()

    def facts(self) -> dict[str, Any]:
        return super().facts() | ({} if self.user is None else {"user": self.user.facts()})

    def check(self, ctx: BuildContext) -> str:
        return "" if self.user is None else self.user.backend_config().check(ctx)


class Chains(AgentSuiteConfig):
    """Chains of documents that name the next one: how far does an agent get, and with how much context?"""

    ships_tasks: ClassVar[bool] = True
    name: str = "chains"
    hops: tuple[int, ...] = (2, 4, 6, 8)
    """Lengths; each is a level."""
    count: int = Field(3, ge=1)
    """Chains of each length."""
    chain_seed: int = 0
    """Another one makes other chains."""

    def all_tasks(self, ctx: BuildContext) -> list[AgentTask]:
        from rlhf_plugin_agents.suites.chains import chain_tasks

        if not self.hops or not all(1 <= n <= 200 for n in self.hops):
            raise ConfigError(f"suite 'chains': {self.hops} are not lengths", fix="hops from 1 to 200, as [2, 4, 6, 8]")
        return chain_tasks(self.hops, self.count, self.chain_seed)


def folder_of(suite: AgentSuiteConfig) -> Path:
    if suite.path is None:
        raise ConfigError(f"suite '{suite.name}' has no rows", fix="--data FOLDER with its published files")
    return Path(suite.path).expanduser()

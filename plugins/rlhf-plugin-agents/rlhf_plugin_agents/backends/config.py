"""Settings of the backends, and which there are. Nothing here imports torch or a client library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, Config, ConfigError
from rlhf_core.models import ModelConfig, ModelError

if TYPE_CHECKING:
    from rlhf_plugin_agents.backends.base import Backend
    from rlhf_plugin_agents.suites.task import AgentTask


class BackendConfig(Config):
    """What every backend has."""

    name: str = ""

    def facts(self) -> dict[str, Any]:
        """What decides its replies, for the settings of an evaluation."""
        return self.model_dump(mode="json")

    def check(self, ctx: BuildContext) -> str:
        """Refuse what can only fail before the first task of any suite; return what a user should know, or ""."""
        return ""

    def make(self, tasks: Sequence[AgentTask], ctx: BuildContext) -> Backend:
        raise NotImplementedError


class ScriptedConfig(BackendConfig):
    """Scripts of the suite: an oracle, or one that is always wrong. No model."""

    name: str = "scripted"
    script: Literal["oracle", "wrong", "reader", "credulous"] = "oracle"
    """Who answers; ``reader``, of ``chains``, knows nothing but what it sees in a request; ``credulous``, of
    ``injection``, does whatever it reads."""
    takes_tools: bool = True
    """False makes agents write calls as text."""
    context_words: int | None = Field(default=None, ge=1)
    """The script sees so many words of a request; None is all of them."""
    cut: Literal["refuse", "oldest", "newest", "middle"] = "refuse"
    """What it loses of a longer one; ``refuse`` ends the task with ``context_full``."""

    def make(self, tasks: Sequence[AgentTask], ctx: BuildContext) -> Backend:
        from rlhf_plugin_agents.backends.scripted import ScriptedBackend

        without = [t.id for t in tasks if self.script not in t.scripts]
        if without:
            raise ConfigError(
                f"task '{without[0]}' has no script '{self.script}'",
                fix="--script oracle or wrong; reader is of chains, credulous of injection",
            )
        return ScriptedBackend(
            {t.id: t.scripts[self.script] for t in tasks}, takes_tools=self.takes_tools,
            context_words=self.context_words, cut=self.cut,
        )  # fmt: skip


class ReplayConfig(BackendConfig):
    """Recorded replies; a request that differs from the recording is named, and its task has no score."""

    name: str = "replay"
    path: str = ""
    """A ``rows.jsonl``, or the folder of an evaluation; of several, the folder that holds theirs."""

    def facts(self) -> dict[str, Any]:
        """With a digest of what was recorded: another recording in the same place is another evaluation."""
        from rlhf_plugin_agents.backends.replay import recording_digest

        return {**self.model_dump(mode="json"), "recording": recording_digest(Path(self.path).expanduser())}

    def check(self, ctx: BuildContext) -> str:
        self.make((), ctx)
        return ""

    def make(self, tasks: Sequence[AgentTask], ctx: BuildContext) -> Backend:
        from rlhf_plugin_agents.backends.replay import ReplayBackend, read_trajectories

        if not self.path:
            raise ConfigError("backend 'replay' has nothing to replay", fix="--replay evals/FOLDER")
        return ReplayBackend(read_trajectories(Path(self.path).expanduser()))


class NativeConfig(BackendConfig):
    """A model in this process, on the toolkit's engine."""

    name: str = "native"
    model: ModelConfig = ModelConfig()

    def facts(self) -> dict[str, Any]:
        from rlhf_core.models import weights_digest

        return {**self.model_dump(mode="json"), "weights": weights_digest(self.model.path)}

    def make(self, tasks: Sequence[AgentTask], ctx: BuildContext) -> Backend:
        """The loaded model; the one that was loaded last is used again, if it is the same."""
        from rlhf_plugin_agents.backends.native import NativeBackend, sampler_of

        key = json.dumps(self.facts(), sort_keys=True)
        return NativeBackend(*sampler_of(key, ctx.registry, self.model), self.model.prompt_format)


def check_form(backend: Backend, form: str, agent: str) -> None:
    """Refuse native calls where the backend cannot offer tools."""
    if form == "native" and not backend.takes_tools:
        raise ModelError(
            f"agent '{agent}' wants native calls, and backend '{backend.name}' cannot offer tools",
            why="the model's chat template does not know them",
            fix="--set agent_settings.calls=text, or auto",
        )

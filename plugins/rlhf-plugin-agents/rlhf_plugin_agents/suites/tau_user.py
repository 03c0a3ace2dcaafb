"""A model as the user of a conversation, asked as tau-bench asks its own (Yao et al. 2024, section 3)."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from threading import Lock
from typing import Any

from pydantic import Field

from rlhf_core.config import BuildContext, Config, ConfigError
from rlhf_core.data import Message, message_text
from rlhf_core.rollouts import request_seed
from rlhf_plugin_agents.backends.base import Backend, BackendFault, ContextFull, ModelRequest
from rlhf_plugin_agents.backends.config import BackendConfig
from rlhf_plugin_agents.tools.library import PROMPTS

STOP = "###STOP###"
GREETING = "Hi! How can I help you today?"
RULES = PROMPTS["tau_user"]


class ModelUserConfig(Config):
    """A model as the user: ``--set user.backend=openai --set user.model=M``."""

    backend: str = "native"
    """native, openai or anthropic."""
    model: str | None = None
    """Of the backend."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The backend's own, such as ``base_url`` or ``max_cost_usd``."""
    temperature: float = Field(1.0, ge=0)
    """tau-bench leaves it at the service's default, which is 1."""
    max_tokens: int = Field(256, ge=1)
    """Of a message."""

    def facts(self) -> dict[str, Any]:
        """What decides its words; a spend cap does not."""
        settings = self.model_dump(mode="json", include={"temperature", "max_tokens"})
        return {**settings, "backend": self.backend_config().facts()}

    def backend_config(self) -> BackendConfig:
        from rlhf_plugin_agents.backends.known import backend_of

        if self.backend in ("scripted", "replay"):
            raise ConfigError(
                f"backend '{self.backend}' cannot be the user of tau_bench",
                fix="leave user out, which is the scripted user, or user.backend=native, openai or anthropic",
            )
        settings = dict(self.settings)
        if self.model is not None:
            settings["model"] = {"path": self.model} if self.backend == "native" else self.model
        return backend_of(self.backend, settings)


class ModelUsers:
    """Makes the users of all tasks; the model is loaded, or the service connected, when the first one speaks."""

    def __init__(self, config: ModelUserConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config, ctx
        self._backend: Backend | None = None
        self._lock = Lock()

    def complete(self, request: ModelRequest) -> Any:
        with self._lock:
            if self._backend is None:
                self._backend = self.config.backend_config().make((), self.ctx)
                atexit.register(self._backend.close)
        return self._backend.complete(request)

    def interrupt(self) -> None:
        getattr(self._backend, "interrupt", lambda: None)()


class ModelUser:
    """One conversation as its user sees it: the agent's words are the other side's."""

    def __init__(self, users: ModelUsers, instruction: str, task: str, seed: int) -> None:
        self.users, self.task, self.seed = users, task, seed
        self.messages: list[Message] = [{"role": "system", "content": RULES.format(instruction=instruction)}]
        self.cost_usd = 0.0
        self.requests = self.prompt_tokens = self.completion_tokens = 0

    def first(self) -> str:
        return self._said(GREETING)

    def __call__(self, text: str) -> str | None:
        """What it answers; None ends the conversation."""
        reply = self._said(text)
        return None if STOP in reply else reply

    def facts(self) -> Mapping[str, Any]:
        return {
            "requests": self.requests, "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens, "cost_usd": self.cost_usd, "messages": self.messages,
        }  # fmt: skip

    def _said(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        config = self.users.config
        request = ModelRequest(
            tuple(self.messages), role="user", key=self.task, seed=request_seed(self.seed, "user", self.requests),
            max_tokens=config.max_tokens, temperature=config.temperature,
        )  # fmt: skip
        try:
            reply = self.users.complete(request)
        except (BackendFault, ContextFull) as fault:
            raise BackendFault(f"the user of task '{self.task}': {fault}") from fault
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cost_usd += reply.cost_usd
        content = message_text(reply.message).strip()
        self.messages.append({"role": "assistant", "content": content})
        return content

"""Settings of the backends that are paid by the token: those of the judges, and whether tools are offered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PrivateAttr

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.models import ModelError
from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_agents.backends.config import BackendConfig
from rlhf_plugin_judge.config import AnthropicConfig
from rlhf_plugin_judge.openai_config import OpenAIConfig
from rlhf_plugin_judge.paid_config import PaidConfig

if TYPE_CHECKING:
    from rlhf_plugin_agents.backends.paid import PaidBackend
    from rlhf_plugin_agents.suites.task import AgentTask

DECIDES = ("name", "model", "send_temperature", "limit_name", "send_seed", "extra_body", "tools")
"""Settings that decide replies; with another cap or deadline an evaluation is gone on with."""


class PaidBackendConfig(BackendConfig, PaidConfig):
    """What both have."""

    what: ClassVar[str] = "backend"
    instead: ClassVar[str] = "backend 'native'"

    name: str = ""
    tools: bool | None = None
    """Whether calls are offered natively; None asks the service once."""
    repeat_after_kill: bool = False
    """As of the judge; here a call that may have been paid for is not repeated unless you say so: its task has no
    verdict until then."""
    _offers: bool | None = PrivateAttr(None)

    def facts(self) -> dict[str, Any]:
        settings = self.model_dump(mode="json")
        return {k: settings[k] for k in DECIDES if k in settings} | {"service": self.address}

    def check(self, ctx: BuildContext) -> str:
        """Find out whether the service is there, takes the key, has the model, and takes tools."""
        from rlhf_plugin_agents.backends.paid import probe

        self.preflight(ctx)
        if getattr(self, "batches", False):
            raise ConfigError(
                f"backend '{self.name}' cannot use batches: each turn needs the one before", fix="leave them out"
            )
        service = self.service(ctx)
        try:
            models, remark = service.listed(), ""
            reply = probe(service, tools=self.tools is not False)
            offers = self.tools is not False
            if offers and reply.status is ScoreStatus.ERROR and re.search(r"\btools?\b", reply.detail.lower()):
                if self.tools:
                    raise ModelError(
                        f"backend '{self.name}': '{self.model}' takes no tools, and tools=true asks for them",
                        why=reply.detail,
                        fix="leave it out: agents then write calls as text",
                    )
                offers, reply, refusal = False, probe(service, tools=False), reply.detail
                remark = f"{self.name}: {self.model} takes no tools ({refusal}): agents write their calls as text"
            if not reply.ok:
                known = f"; it lists {', '.join(models[:8])}" if models and self.model not in models else ""
                raise ConfigError(
                    f"backend '{self.name}': {self.address or 'the service'} gives no answer",
                    why=f"{reply.detail}{known}",
                    fix="set backend.model, backend.base_url and the key to what the service wants",
                )
        finally:
            service.close()
        self._offers = offers
        return remark

    def make(self, tasks: Sequence[AgentTask], ctx: BuildContext) -> PaidBackend:
        from rlhf_plugin_agents.backends.paid import PaidBackend

        if self._offers is None:
            self.check(ctx)
        return PaidBackend(self.service(ctx), self.name, takes_tools=bool(self._offers))


class AnthropicBackendConfig(PaidBackendConfig, AnthropicConfig):
    """A model behind the Anthropic API, with tools. The key is in ``ANTHROPIC_API_KEY``."""

    name: str = "anthropic"
    model: str = "claude-haiku-4-5"
    """As the service calls it."""


class OpenAIBackendConfig(PaidBackendConfig, OpenAIConfig):
    """A model behind OpenAI's API or any server that speaks its chat completions, with tools."""

    name: str = "openai"
    model: str = ""
    """As the server calls it."""

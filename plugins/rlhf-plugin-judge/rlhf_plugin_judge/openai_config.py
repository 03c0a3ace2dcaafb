"""Settings of any server that speaks OpenAI's chat completions; importing this imports no client library."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.rewards import JudgeRequest
from rlhf_plugin_judge.paid_config import PaidConfig
from rlhf_plugin_judge.prices import Price, price_of

if TYPE_CHECKING:
    from rlhf_plugin_judge.openai_service import OpenAIJudge
    from rlhf_plugin_judge.question import Question


FIXED = ("model", "messages", "n", "tools", "stream", "max_tokens", "max_completion_tokens")
"""Fields of a request that ``extra_body`` may not replace: the cap counts on them."""


class OpenAIConfig(PaidConfig):
    """A model behind OpenAI's API or a server that speaks it (vLLM, llama.cpp, Ollama, ...), at ``base_url``.

    The key comes from an environment variable only. A server of this machine or of a private network needs neither key
    nor price.
    """

    package: ClassVar[str] = "openai"
    address_from: ClassVar[str] = "OPENAI_BASE_URL"

    name: str = "openai"
    base_url: str | None = None
    """For example http://localhost:8000/v1; None is ``OPENAI_BASE_URL``, or the service's own."""
    key_from: str = "OPENAI_API_KEY"
    """The environment variable that holds the key."""
    limit_name: Literal["auto", "max_tokens", "max_completion_tokens"] = "auto"
    """How the longest reply is called; ``auto`` is ``max_completion_tokens`` for the service's own address."""
    send_temperature: bool = True
    """Reasoning models refuse one."""
    send_seed: bool = True
    """A seed decides nothing at services that do not know it; where it is refused, leave it out."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, such as ``{chat_template_kwargs: {enable_thinking: false}}`` for vLLM."""

    @property
    def key_variable(self) -> str:
        return self.key_from

    @property
    def is_private(self) -> bool:
        """Whether the server is of this machine or of a private network, where nobody sends a bill."""
        host = urlsplit(self.address or "").hostname or ""
        try:
            return ipaddress.ip_address(host).is_private
        except ValueError:
            return bool(host) and (host == "localhost" or "." not in host or host.endswith((".local", ".internal")))

    @property
    def limit(self) -> str:
        """The field that holds the longest reply."""
        if self.limit_name != "auto":
            return self.limit_name
        return "max_tokens" if self.address else "max_completion_tokens"

    @property
    def price(self) -> Price:
        """What this model's tokens cost; nothing on a private server, unless a price is set."""
        if not self.model:
            raise ConfigError(
                f"{self.what} 'openai' has no model", fix=f"--set {self.what}.model=NAME, as the server has it"
            )
        if self.is_private and price_of(self.model, self.prices) is None:
            return Price(input=0, output=0)
        price = super().price
        # What a service takes off for cached input differs; unless the price says, it is counted in full.
        return price.model_copy(
            update={k: price.input for k in ("cache_read", "cache_write") if getattr(price, k) is None}
        )

    def preflight(self, ctx: BuildContext) -> None:
        """As of all, and refuse further fields that the cap counts on."""
        fixed = sorted({*FIXED} & {*self.extra_body})
        if fixed:
            raise ConfigError(
                f"{self.what} '{self.name}': extra_body cannot set '{fixed[0]}'",
                why="this field decides what is asked and what it costs",
                fix="use the settings model and limit_name, and leave the rest out",
            )
        super().preflight(ctx)

    def key(self) -> SecretStr:
        if self.is_private and not self.known_key:
            return SecretStr("none-is-needed")
        return super().key()

    def question_of(self, request: JudgeRequest) -> Question:
        from rlhf_plugin_judge.openai_question import question_of

        return question_of(request, self)

    def service(self, ctx: BuildContext) -> OpenAIJudge:
        from rlhf_plugin_judge.openai_service import OpenAIJudge

        return OpenAIJudge(self, self.key(), ctx)

"""The judge behind OpenAI's API, or any server that speaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
from pydantic import SecretStr

from rlhf_core.config import BuildContext
from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_judge.paid import PaidService
from rlhf_plugin_judge.prices import NANO, Tokens, cost
from rlhf_plugin_judge.replies import ServiceReply

if TYPE_CHECKING:
    from rlhf_plugin_judge.openai_config import OpenAIConfig
    from rlhf_plugin_judge.question import Question


class OpenAIJudge(PaidService):
    """Asks a model by chat completions.

    Args:
        config: its settings.
        key: kept in memory only.
        ctx: as for :class:`PaidService`.

    Raises:
        ConfigError: the ledger is damaged or cannot be written.
    """

    def __init__(self, config: OpenAIConfig, key: SecretStr, ctx: BuildContext) -> None:
        super().__init__(config, key, ctx)
        self.config = config

    def connect(self) -> openai.AsyncOpenAI:
        """The SDK's client."""
        return openai.AsyncOpenAI(
            api_key=self.secret.get_secret_value(),
            base_url=self.config.base_url,
            max_retries=0,
            timeout=self.config.timeout_s,
        )

    async def send(self, question: Question) -> Any:
        """One completion."""
        return await self.client.chat.completions.create(**question.params, extra_headers=question.headers)

    async def models(self) -> list[str]:
        """The server's models; asking costs nothing."""
        return [m.id async for m in self.client.models.list()]

    def read(self, message: Any, question: Question | None = None) -> tuple[ServiceReply, Tokens]:
        """Text and calls of the first choice, with its cost.

        Raises:
            ValueError: it is no completion.
        """
        choices = getattr(message, "choices", None)
        if not choices or getattr(choices[0], "message", None) is None:
            raise ValueError(f"the server answered with {str(message)[:80]!r}, not a chat completion")
        choice, tools = choices[0], question is not None and question.tools
        tokens = tokens_of(message.usage)
        text = choice.message.content or choice.message.refusal or ""
        calls = tuple(
            {"id": c.id or "", "name": c.function.name or "", "arguments": c.function.arguments or "{}"}
            for c in choice.message.tool_calls or ()
            if getattr(c, "function", None) is not None
        )
        status = ScoreStatus.OK if text or tools else ScoreStatus.MISSING
        why = "" if text or tools else f"no text: it stopped for '{choice.finish_reason}'"
        size = tokens.input + tokens.cache_write + tokens.cache_read
        stopped = str(choice.finish_reason) if tools else ""
        # A server that does not say what it took may have taken everything.
        nano = cost(self.price, tokens) if message.usage is not None else question.most if question else 0
        usd = nano / NANO
        given = text if tools else text or None
        reply = ServiceReply(given, status, why, size, tokens.output, usd, calls=calls, stopped=stopped)
        return self.counted(reply), tokens


def tokens_of(usage: Any) -> Tokens:
    """What a completion took; nothing where the server does not say."""
    if usage is None:
        return Tokens()
    details = usage.prompt_tokens_details
    read = int(getattr(details, "cached_tokens", 0) or 0)
    written = int(getattr(details, "cache_write_tokens", 0) or 0)
    size = int(usage.prompt_tokens or 0)
    return Tokens(max(size - read - written, 0), int(usage.completion_tokens or 0), written, read)

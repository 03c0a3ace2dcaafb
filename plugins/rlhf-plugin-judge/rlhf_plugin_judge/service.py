"""The judge behind the Anthropic API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anthropic
from pydantic import SecretStr

from rlhf_core.config import BuildContext
from rlhf_core.rewards import ScoreStatus
from rlhf_plugin_judge.paid import PaidService
from rlhf_plugin_judge.prices import NANO, Tokens, cost
from rlhf_plugin_judge.replies import ServiceReply

if TYPE_CHECKING:
    from rlhf_plugin_judge.config import AnthropicConfig
    from rlhf_plugin_judge.question import Question


class AnthropicJudge(PaidService):
    """Asks a model behind the Messages API.

    Args:
        config: its settings.
        key: kept in memory only.
        ctx: as for :class:`PaidService`.

    Raises:
        ConfigError: the ledger is damaged or cannot be written.
    """

    def __init__(self, config: AnthropicConfig, key: SecretStr, ctx: BuildContext) -> None:
        super().__init__(config, key, ctx)
        self.config = config

    def connect(self) -> anthropic.AsyncAnthropic:
        """The SDK's client."""
        return anthropic.AsyncAnthropic(
            api_key=self.secret.get_secret_value(),
            base_url=self.config.base_url,
            max_retries=0,
            timeout=self.config.timeout_s,
        )

    async def send(self, question: Question) -> Any:
        """One message."""
        more = {} if question.temperature is None else {"temperature": question.temperature}
        return await self.client.messages.create(**question.params, extra_body=more, extra_headers=question.headers)

    async def models(self) -> list[str]:
        """The service's models; asking costs nothing."""
        return [m.id async for m in self.client.models.list(limit=1000)]

    async def ask_together(self, questions: Sequence[Question]) -> Mapping[str, ServiceReply] | None:
        """As message batches, where those are wanted."""
        if not self.config.batches:
            return None
        from rlhf_plugin_judge.batches import ask_batched

        return await ask_batched(self, questions)

    def read(self, message: Any, question: Question | None = None) -> tuple[ServiceReply, Tokens]:
        """Text and calls of a message, with its cost.

        Raises:
            ValueError: it is no message.
        """
        if not isinstance(message, anthropic.types.Message):
            raise ValueError(f"the service answered with {type(message).__name__} {str(message)[:80]!r}, not a message")
        tokens, tools = tokens_of(message), question is not None and question.tools
        share = self.config.batch_price if self.config.batches else 1.0
        usd = cost(self.price, tokens, share) / NANO
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = tuple(
            {"id": b.id, "name": b.name, "arguments": json.dumps(b.input)}
            for b in message.content
            if b.type == "tool_use"
        )
        size = tokens.input + tokens.cache_write + tokens.cache_read
        status = ScoreStatus.OK if text or tools else ScoreStatus.MISSING
        why = "" if text or tools else f"no text: it stopped for '{message.stop_reason}'"
        stopped = str(message.stop_reason) if tools else ""
        given = text if tools else text or None
        reply = ServiceReply(given, status, why, size, tokens.output, usd, calls=calls, stopped=stopped)
        return self.counted(reply), tokens


def tokens_of(message: Any) -> Tokens:
    """What a message took."""
    usage = message.usage
    return Tokens(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens or 0,
        usage.cache_read_input_tokens or 0,
    )

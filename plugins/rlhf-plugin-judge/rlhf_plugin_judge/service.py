"""The judge behind the Anthropic API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anthropic

from rlhf_plugin_judge.paid import PaidService
from rlhf_plugin_judge.prices import NANO, Tokens, cost
from rlhf_plugin_judge.replies import ServiceReply

if TYPE_CHECKING:
    from rlhf_plugin_judge.config import AnthropicConfig
    from rlhf_plugin_judge.question import Question


class AnthropicJudge(PaidService[Any]):
    config: AnthropicConfig
    client_class = anthropic.AsyncAnthropic

    async def send(self, question: Question) -> Any:
        more = {} if question.temperature is None else {"temperature": question.temperature}
        return await self.client.messages.create(**question.params, extra_body=more, extra_headers=question.headers)

    async def models(self) -> list[str]:
        return [m.id async for m in self.client.models.list(limit=1000)]

    async def ask_together(self, questions: Sequence[Question]) -> Mapping[str, ServiceReply] | None:
        """As message batches, where those are wanted."""
        if not self.config.batches:
            return None
        from rlhf_plugin_judge.batches import ask_batched

        return await ask_batched(self, questions)

    def read(self, message: Any, question: Question | None = None) -> tuple[ServiceReply, Tokens]:
        if not isinstance(message, anthropic.types.Message):
            raise ValueError(f"the service answered with {type(message).__name__} {str(message)[:80]!r}, not a message")
        tokens = tokens_of(message)
        share = self.config.batch_price if self.config.batches else 1.0
        usd = cost(self.price, tokens, share) / NANO
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = [
            {"id": b.id, "name": b.name, "arguments": json.dumps(b.input)}
            for b in message.content
            if b.type == "tool_use"
        ]
        return self.counted(text, calls, message.stop_reason, tokens, usd, question), tokens


def tokens_of(message: Any) -> Tokens:
    usage = message.usage
    return Tokens(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens or 0,
        usage.cache_read_input_tokens or 0,
    )

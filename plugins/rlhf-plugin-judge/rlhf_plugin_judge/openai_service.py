"""The judge behind OpenAI's API, or any server that speaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai

from rlhf_plugin_judge.paid import PaidService
from rlhf_plugin_judge.paid_config import PaidConfig
from rlhf_plugin_judge.prices import NANO, Tokens, cost
from rlhf_plugin_judge.replies import ServiceReply

if TYPE_CHECKING:
    from rlhf_plugin_judge.question import Question


class OpenAIJudge(PaidService[PaidConfig]):
    client_class = openai.AsyncOpenAI

    async def send(self, question: Question) -> Any:
        return await self.client.chat.completions.create(**question.params, extra_headers=question.headers)

    async def models(self) -> list[str]:
        """The server's models; asking costs nothing."""
        return [m.id async for m in self.client.models.list()]

    def read(self, message: Any, question: Question | None = None) -> tuple[ServiceReply, Tokens]:
        choices = getattr(message, "choices", None)
        if not choices or getattr(choices[0], "message", None) is None:
            raise ValueError(f"the server answered with {str(message)[:80]!r}, not a chat completion")
        choice = choices[0]
        tokens = tokens_of(message.usage)
        text = choice.message.content or choice.message.refusal or ""
        calls = [
            {"id": c.id or "", "name": c.function.name or "", "arguments": c.function.arguments or "{}"}
            for c in choice.message.tool_calls or ()
            if getattr(c, "function", None) is not None
        ]
        # A server that does not say what it took may have taken everything.
        nano = cost(self.price, tokens) if message.usage is not None else question.most if question else 0
        return self.counted(text, calls, choice.finish_reason, tokens, nano / NANO, question), tokens


def tokens_of(usage: Any) -> Tokens:
    if usage is None:
        return Tokens()
    details = usage.prompt_tokens_details
    read = int(getattr(details, "cached_tokens", 0) or 0)
    written = int(getattr(details, "cache_write_tokens", 0) or 0)
    size = int(usage.prompt_tokens or 0)
    return Tokens(max(size - read - written, 0), int(usage.completion_tokens or 0), written, read)

"""What every kind of data shares: prompts to make rows of, what came of them, requests for responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.data import Message, message_text
from rlhf_core.rewards import JudgeReply, JudgeRequest
from rlhf_core.rollouts import request_seed
from rlhf_plugin_datagen.usage import Estimate, Meter
from rlhf_plugin_judge.delimiters import fence_untrusted
from rlhf_plugin_rubric.rubric import Rubric


@dataclass(frozen=True)
class Item:
    """A prompt to make a row of, and for grades the response if there is one."""

    id: str
    prompt: tuple[Message, ...]
    completion: str | None = None


@dataclass(frozen=True)
class ItemResult:
    """What came of an item: a row, or why there is none."""

    item: Item
    row: Mapping[str, Any] | None = None
    left_out: str = ""
    """Reason for which what was generated cannot be used; generated again it would be the same."""
    detail: str = ""


@dataclass(frozen=True)
class Settings:
    """What all kinds share."""

    principles: tuple[str, ...]
    rubric: Rubric
    seed: int = 0
    max_tokens: int = 256
    judge_tokens: int = 512
    """Of a judge's answer or critique."""
    temperature: float = 1.0
    """Of responses; judges answer at 0."""


FRAME = len(fence_untrusted(("conversation", ""), ("response_a", ""), ("response_b", "")))
"""Characters of a judge's question around its texts, for estimates."""
Produce = Callable[[Sequence[Item], Meter, Meter, Settings], list[ItemResult]]
"""(items of one batch, generator, judge, settings) -> one result per item, in order."""
EstimateItem = Callable[[Item, Estimate, Estimate, Settings], None]
"""(item, the generator's estimate, the judge's, settings): adds to both what the item would take."""


def response_request(item: Item, request_id: str, index: int, settings: Settings) -> JudgeRequest:
    return JudgeRequest(
        request_id,
        item.prompt,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        seed=request_seed(settings.seed, "data", item.id, index),
    )


def was_cut(reply: JudgeReply, settings: Settings) -> bool:
    """Whether a text of a response's length ends at the token limit: no example of how to end."""
    return reply.ok and reply.output_tokens >= settings.max_tokens


def question(*texts: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": "\n\n".join(texts)},)


def reply_text(reply: JudgeReply) -> str:
    return (reply.text or "").strip()


def length(prompt: Sequence[Message]) -> int:
    return sum(len(message_text(m)) for m in prompt)

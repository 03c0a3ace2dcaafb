"""What generating and judging took, and an estimate of what they would take."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.config import ComponentConfig
from rlhf_core.rewards import JudgeReply, JudgeRequest

CHARACTERS = 4
"""Characters that one token stands for, about, in an estimate."""


@dataclass
class Usage:
    """Requests, tokens and money; of answers, not of questions that failed."""

    requests: int = 0
    cached: int = 0
    """Of them, answered from a judge's store of earlier answers."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, reply: JudgeReply) -> None:
        self.requests += 1
        self.cached += reply.cached
        self.input_tokens += reply.input_tokens
        self.output_tokens += reply.output_tokens
        self.cost_usd += reply.cost_usd

    def merge(self, other: dict[str, Any]) -> None:
        """Add a usage as rows keep it."""
        for key in vars(self):
            setattr(self, key, getattr(self, key) + other.get(key, 0))


class Meter:
    """A judge whose replies are counted, for each item and in all. Request ids begin with ``ITEM#``."""

    def __init__(self, judge: Any) -> None:
        self.judge = judge
        self.total = Usage()
        self.items: defaultdict[str, Usage] = defaultdict(Usage)
        self.unanswered: dict[str, str] = {}
        """Item -> why a question of it got no answer; to be asked again another time."""

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        if not requests:
            return []
        replies = list(self.judge.ask(requests))
        for request, reply in zip(requests, replies, strict=True):
            item = request.id.rpartition("#")[0]
            self.total.add(reply)
            self.items[item].add(reply)
            if not reply.ok and not reply.input_tokens:  # what took tokens was answered, if only by a refusal
                self.unanswered.setdefault(item, f"{reply.status.value}: {reply.detail}")
        return replies


@dataclass
class Estimate:
    """What asking would take; tokens are a guess from characters, answers count in full."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd_per_million: tuple[float, float] | None = None
    """Price of input and output; None is a model that costs nothing, or whose price is not known."""
    asked: str = ""
    """The component that would answer, as :func:`label` writes it."""

    def add(self, characters: int, max_tokens: int, times: int = 1) -> None:
        """Count a question of so many characters, asked ``times`` times."""
        self.requests += times
        self.input_tokens += times * math.ceil(characters / CHARACTERS)
        self.output_tokens += times * max_tokens

    @property
    def cost_usd(self) -> float:
        """At these prices, with every answer at its longest."""
        input_price, output_price = self.usd_per_million or (0.0, 0.0)
        return (self.input_tokens * input_price + self.output_tokens * output_price) / 1e6

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "usd_per_million_tokens": self.usd_per_million,
            "cost_usd": round(self.cost_usd, 6),
        }


def estimate_for(config: ComponentConfig) -> Estimate:
    """An empty estimate at ``config.price``; message batches (``config.batches``) cost ``config.batch_price``."""
    price = getattr(config, "price", None)
    share = float(getattr(config, "batch_price", 1.0)) if getattr(config, "batches", False) else 1.0
    prices = None if price is None else (share * float(price.input), share * float(price.output))
    return Estimate(usd_per_million=prices, asked=label(config))


def label(config: ComponentConfig) -> str:
    """Name and model. Example: ``anthropic (claude-haiku-4-5)``"""
    model = getattr(config, "model", None)
    name = getattr(model, "path", model)
    return f"{config.name} ({name})" if name else config.name


def answer_settings(config: ComponentConfig) -> dict[str, Any]:
    """The settings that decide a judge's answers: its name and model, or all of them where it has no model."""
    data = config.model_dump(mode="json")
    return {"name": data["name"], "model": data["model"]} if "model" in data else data

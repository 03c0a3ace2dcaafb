"""What tokens cost. Money is counted in whole nano-dollars (1e-9 USD), so that sums are exact; every cost rounds up."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from rlhf_core.config import Config

NANO = 1_000_000_000
MESSAGE_TOKENS, REQUEST_TOKENS = 16, 64
"""More than a service adds around a message, and around a request."""


class Price(Config):
    """USD per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_write: float | None = Field(default=None, ge=0)
    """Input that is written to the service's prompt cache; None is 1.25 times ``input``."""
    cache_read: float | None = Field(default=None, ge=0)
    """Input read from that cache; None is a tenth of ``input``."""
    longest: int | None = Field(default=None, ge=1)
    """Prompts that might have more tokens may cost more, and are not sent; None: one price for all lengths."""

    @property
    def writing(self) -> float:
        return 1.25 * self.input if self.cache_write is None else self.cache_write

    @property
    def reading(self) -> float:
        return 0.1 * self.input if self.cache_read is None else self.cache_read


class Tokens(NamedTuple):
    """What a service says that one answer took."""

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0


_LISTED = tomllib.loads(Path(__file__).with_name("prices.toml").read_text())
PRICES: Mapping[str, Price] = {model: Price(**price) for model, price in _LISTED.items()}
"""List prices; ``judge.prices`` adds models and replaces these."""
TAKE_TEMPERATURE = ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-sonnet-4-6", "claude-opus-4-5", "claude-opus-4-6")
"""Models, with their dated versions, that take a temperature; later ones refuse it."""


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Price of a model, by its name or the longest name that it is a dated version of (``NAME-20251001``)."""
    fits = [name for name in prices if is_version(model, name)]
    return prices[max(fits, key=len)] if fits else None


def is_version(model: str, name: str) -> bool:
    """Whether a model is the one called ``name``, or a dated version of it."""
    return model == name or model.startswith(f"{name}-20")


def cost(price: Price, tokens: Tokens, share: float = 1.0) -> int:
    """Nano-dollars of one answer, rounded up; ``share`` is what is left of the price after a discount."""
    usd_per_million = (
        tokens.input * price.input
        + tokens.output * price.output
        + tokens.cache_write * price.writing
        + tokens.cache_read * price.reading
    )
    return math.ceil(round(usd_per_million * share * NANO / 1e6, 3))


def most(price: Price, texts: Iterable[str], max_tokens: int, share: float = 1.0) -> int:
    """Most that a question can cost, in nano-dollars: a token per byte, all written to the cache, and
    ``max_tokens``."""
    dearest = Price(input=max(price.input, price.writing), output=price.output)
    return cost(dearest, Tokens(input=most_tokens(texts), output=max_tokens), share)


def most_tokens(texts: Iterable[str]) -> int:
    return sum(len(t.encode()) + MESSAGE_TOKENS for t in texts) + REQUEST_TOKENS

"""Whether an update arrived: what changed in an engine's logprobs beside what changed in the trainer's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NOISE_GROWTH = 8.0
"""The differences of later versions may be so many times those of the first, where both have the same weights."""
LEAST_NOISE = {"float32": 5e-6}
"""No first version counts as more exact than this, as multiples of :class:`CanaryToken`'s ``spread``."""
LEAST_ROUGH_NOISE = 5e-4
"""The same of other number types."""
LEAST_SPREAD = 0.02
"""No token's spread counts as less."""
STANDS_STILL = 0.05
"""An engine whose logprobs change less than this part of the trainer's change has the weights of before."""
STILL_FROM = 0.5
"""Of the noise: a change of the trainer's logprobs that is enough to see whether the engine's changed at all."""
NEARER_FROM = 10.0
"""Of the noise: a change that is enough to see which of two versions the engine is nearer to."""
LASTING_GROWTH = 2.5
"""Differences that stay the same from version to version may be so many times the noise: rounding changes its sign."""
LASTING_VERSIONS = 16
"""Over about so many versions they are averaged."""
MOST_OF_ONE = 4.0
"""A token counts as having changed by no more than so many times what is enough: a quarter of them has to change."""


class CanaryToken(NamedTuple):
    context: tuple[int, ...]
    token: int
    engine: float
    """Its logprob, as the engine answered."""
    trainer: float
    """The same from the weights that the engine was sent."""
    spread: float
    """How far the logprob moves where logits do: ``|onehot(token) - p|``; near 0 where the token is certain."""


Position = tuple[tuple[int, ...], int]
"""A token and every token before it."""
Tokens = Mapping[Position, CanaryToken]


@dataclass
class OlderVersionTest:
    """What an engine and the trainer answered with an earlier version."""

    least: float
    """Change, in multiples of the noise, that is enough to tell the two versions apart."""
    tokens: Tokens

    def differs_from_older(self, now: Tokens, noise: float, differs: Callable[[list[Change]], bool]) -> bool:
        """Whether the version is far enough for ``differs`` to count, and it holds; small updates add up."""
        changes = [Change(self.tokens[key], token) for key, token in now.items() if key in self.tokens]
        far = self._is_far(changes, noise)
        if far and differs(changes):
            return True
        if far or 2 * len(changes) < len(now):  # what completions have in common no longer says much
            self.tokens = now
        return False

    def _is_far(self, changes: Sequence[Change], noise: float) -> bool:
        """Whether the trainer's logprobs changed enough, and not those of a few tokens alone."""
        least = self.least * noise
        moved = sum(min(abs(c.trainer), MOST_OF_ONE * least * c.now.spread) for c in changes)
        return moved >= least * sum(c.now.spread for c in changes) > 0


class Change(NamedTuple):
    """A token that was sampled after the same tokens with an earlier version too."""

    before: CanaryToken
    now: CanaryToken

    @property
    def trainer(self) -> float:
        """What the update changed."""
        return self.now.trainer - self.before.trainer

    @property
    def engine(self) -> float:
        """What it changed in the engine."""
        return self.now.engine - self.before.engine


class PersistentDrift:
    """Means of each token's signed difference of engine and trainer, in which rounding cancels."""

    def __init__(self) -> None:
        self._means: dict[Position, tuple[float, int]] = {}

    def add(self, now: Tokens) -> float:
        """Take another version; the means' size as a multiple of the tokens' spread, 0 while there are too few."""
        means: dict[Position, tuple[float, int]] = {}
        for position, token in now.items():
            mean, count = self._means.get(position, (0.0, 0))
            share = max(1 / LASTING_VERSIONS, 1 / (count + 1))
            means[position] = (mean + share * (token.engine - token.trainer - mean), count + 1)
        self._means |= means
        lasting = [position for position, (_, count) in means.items() if count >= LASTING_VERSIONS]
        if 2 * len(lasting) < len(now):
            return 0.0
        return _size(means[position][0] for position in lasting) / _spread(now[position] for position in lasting)


class UpdateCheck:
    """What is known of one engine, from its first version on, where it and the trainer differ by rounding alone."""

    def __init__(self, tokens: Sequence[CanaryToken], least_noise: float, noise: float | None = None) -> None:
        self.noise = max(least_noise, noise_of(tokens) if noise is None else noise)
        """Mean difference of a logprob, as a multiple of its ``spread``."""
        first = _by_position(tokens)
        self._still, self._nearer = OlderVersionTest(STILL_FROM, first), OlderVersionTest(NEARER_FROM, first)
        self._lasting = PersistentDrift()

    def missing(self, tokens: Sequence[CanaryToken], *, any_noise: bool = False) -> str:
        """How the engine's weights are seen to differ, or ""; with ``any_noise`` only what changed is looked at."""
        now = _by_position(tokens)
        if self._still.differs_from_older(now, self.noise, _stands_still):
            return "its logprobs are those of an earlier version, and the trainer's changed"
        if self._nearer.differs_from_older(now, self.noise, _is_nearer_to_older):
            return "its logprobs are nearer to those of an earlier version"
        noise, lasting = noise_of(tokens) / self.noise, self._lasting.add(now) / self.noise
        if any_noise or (noise <= NOISE_GROWTH and lasting <= LASTING_GROWTH):
            return ""
        lasts = "" if noise > NOISE_GROWTH else "for many versions "
        times, most = (noise, NOISE_GROWTH) if noise > NOISE_GROWTH else (lasting, LASTING_GROWTH)
        return (
            f"its logprobs {lasts}differ from the trainer's {times:.1f} times as much as with the first version, "
            f"at most {most:g} times is rounding"
        )


def least_noise(dtype: str) -> float:
    """The least that rounding is taken to be, by what an engine computes in."""
    return LEAST_NOISE.get(dtype, LEAST_ROUGH_NOISE)


def noise_of(tokens: Sequence[CanaryToken]) -> float:
    """Mean difference of engine and trainer, as a multiple of the mean spread."""
    return _size(t.engine - t.trainer for t in tokens) / _spread(tokens)


def _stands_still(changes: Sequence[Change]) -> bool:
    return _size(c.engine for c in changes) < STANDS_STILL * _size(c.trainer for c in changes)


def _is_nearer_to_older(changes: Sequence[Change]) -> bool:
    to_older = _size(c.now.engine - c.before.trainer for c in changes)
    return to_older < _size(c.now.engine - c.now.trainer for c in changes)


def _spread(tokens: Iterable[CanaryToken]) -> float:
    """The sum; of tokens that are nearly certain, too, a logprob has float32's rounding."""
    return sum(max(LEAST_SPREAD, token.spread) for token in tokens)


def _by_position(tokens: Sequence[CanaryToken]) -> Tokens:
    return {(t.context, t.token): t for t in tokens}


def _size(values: Iterable[float]) -> float:
    return sum(abs(v) for v in values)

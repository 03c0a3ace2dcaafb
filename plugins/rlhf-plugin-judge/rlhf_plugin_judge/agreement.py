"""How far a judge agrees with labels, with what chance alone would give, and how often the position decided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_core.api import PreferencePair
from rlhf_core.protocols import Judge
from rlhf_plugin_judge.pairwise import compare, matches_of
from rlhf_plugin_judge.rewards import Asking


@dataclass(frozen=True, slots=True)
class Agreement:
    """Verdicts beside labels."""

    count: int
    judged: int
    """Those that have a verdict."""
    accuracy: float
    """Share of the judged that agree; a tie counts half."""
    low: float
    """95 % interval of the accuracy (Wilson 1927), to ``high``."""
    high: float
    kappa: float | None = None
    """Cohen's (1960): 0 is what chance gives with these frequencies, 1 full agreement; None where undefined."""

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def wilson(good: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share (Wilson 1927, eq. 4); (0, 1) of nothing.

    Example:
        >>> [round(x, 3) for x in wilson(5, 10)]
        [0.237, 0.763]
    """
    if count == 0:
        return 0.0, 1.0
    share, square = good / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def agreement(labels: Sequence[Hashable], verdicts: Sequence[Hashable | None]) -> Agreement:
    """Compare verdicts (None where there is none) with labels of the same kind.

    Example:
        >>> round(agreement([1, 1, 0, 0], [1, 0, 0, None]).accuracy, 3)
        0.667
    """
    rows = [(label, said) for label, said in zip(labels, verdicts, strict=True) if said is not None]
    good = sum(label == said for label, said in rows)
    low, high = wilson(good, len(rows))
    ours, theirs = Counter(said for _, said in rows), Counter(label for label, _ in rows)
    by_chance = sum(ours[k] * theirs[k] for k in theirs) / len(rows) ** 2 if rows else 1.0
    share = good / len(rows) if rows else math.nan
    kappa = (share - by_chance) / (1 - by_chance) if by_chance < 1 else None
    return Agreement(len(labels), len(rows), share, low, high, kappa)


def pair_agreement(judge: Judge, pairs: Sequence[PreferencePair], criterion: str, asking: Asking) -> dict[str, Any]:
    """Ask about labelled pairs in both orders, and compare.

    Returns:
        :class:`Agreement` as JSON values, and ``flipped`` (share of the judged in which the position decided),
        ``ties`` (both orders called it even), ``missing`` (reason -> count), ``cost_usd``.
    """
    outcomes = compare(judge, matches_of(pairs), criterion, asking)
    shares = [o.share for o in outcomes if o.share is not None]
    good = sum(shares)
    low, high = wilson(good, len(shares))
    whole = Agreement(len(pairs), len(shares), good / len(shares) if shares else math.nan, low, high)
    share = (lambda n: n / len(shares)) if shares else (lambda n: math.nan)
    flipped = sum(o.flipped for o in outcomes)
    return {**whole.as_dict(), "flipped": share(flipped), "ties": share(shares.count(0.5) - flipped),
            "missing": dict(Counter(o.status.value for o in outcomes if o.share is None)),
            "cost_usd": sum(o.cost_usd for o in outcomes)}

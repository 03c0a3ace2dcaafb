"""How far a judge agrees with labels, and how often the position decided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_core.data import PreferencePair
from rlhf_core.rewards import Judge
from rlhf_core.runs import wilson
from rlhf_plugin_judge.pairwise import compare, matches_of
from rlhf_plugin_judge.rewards import Asking


@dataclass(frozen=True, slots=True)
class Agreement:
    """Verdicts beside labels."""

    count: int
    judged: int
    accuracy: float
    low: float
    """95 % interval of the accuracy (Wilson 1927), to ``high``; NaN if nothing was judged."""
    high: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def pair_agreement(judge: Judge, pairs: Sequence[PreferencePair], criterion: str, asking: Asking) -> dict[str, Any]:
    """Ask about labelled pairs in both orders, and compare.

    :class:`Agreement` as JSON values, and ``flipped`` (share of the judged in which the position decided), ``ties``
    (both orders called it even), ``missing`` (reason -> count), ``cost_usd``.
    """
    outcomes = compare(judge, matches_of(pairs), criterion, asking)
    shares = [o.share for o in outcomes if o.share is not None]
    accuracy = sum(shares) / len(shares) if shares else math.nan
    whole = Agreement(len(pairs), len(shares), accuracy, *wilson(accuracy, len(shares)))
    share = (lambda n: n / len(shares)) if shares else (lambda n: math.nan)
    flipped = sum(o.flipped for o in outcomes)
    return {
        **whole.as_dict(),
        "flipped": share(flipped),
        "ties": share(shares.count(0.5) - flipped),
        "missing": dict(Counter(o.status.value for o in outcomes if o.share is None)),
        "cost_usd": sum(o.cost_usd for o in outcomes),
    }

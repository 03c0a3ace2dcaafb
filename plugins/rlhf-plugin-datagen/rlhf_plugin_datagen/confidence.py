"""Which preference pairs a reward model is sure of: ``|r(chosen) - r(rejected)|``, and the top fraction by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlhf_core.api import DatasetError, PreferencePair, Prompt, Sample
from rlhf_core.functional import WinRate, win_rate
from rlhf_core.sdk import request_seed

By = Literal["absolute", "signed", "random"]


def margins(reward: Any, pairs: Sequence[PreferencePair]) -> list[float | None]:
    """``r(chosen) - r(rejected)`` of every pair; None where a side has no score.

    Raises:
        DatasetError: no pair has both scores.
    """
    prompts = [Prompt(p.id, p.prompt, source=p.source) for p in pairs]
    both = [Sample(prompt, text) for prompt, pair in zip(prompts, pairs) for text in (pair.chosen, pair.rejected)]
    scores = list(reward.score(both))
    found = [
        None if c.value is None or r.value is None or not (c.ok and r.ok) else float(c.value) - float(r.value)
        for c, r in zip(scores[::2], scores[1::2], strict=True)
    ]
    if pairs and all(m is None for m in found):
        bad = next(s for s in scores if not s.ok)
        raise DatasetError(
            "the reward has no score for any pair",
            why=f"first: {bad.status.value}: {bad.detail}",
            fix="mend the reward, or choose another",
        )
    return found


def confidences(
    found: Sequence[float | None], pairs: Sequence[PreferencePair], by: By, seed: int
) -> list[float | None]:
    """What pairs are ranked by. ``absolute``: the margin's size. ``signed``: the margin, so that pairs whose label the
    model denies come last. ``random``: a number that the pair's id and the seed alone decide."""
    if by == "random":
        return [request_seed(seed, "filter", p.id) / 2**63 for p in pairs]
    return [None if m is None else abs(m) if by == "absolute" else m for m in found]


def top(values: Sequence[float | None], keep: float, strata: Sequence[str]) -> list[int]:
    """Indices of the highest ``keep`` of each stratum, at least one, in their order; missing values are never kept.

    The share is of all pairs of the stratum; of equal values the first are kept.

    Example:
        >>> top([0.1, 0.9, 0.5, None], 0.5, ["a", "a", "b", "b"])
        [1, 2]
    """
    kept: list[int] = []
    for stratum in dict.fromkeys(strata):
        rows = [i for i, s in enumerate(strata) if s == stratum]
        ranked = sorted((i for i in rows if values[i] is not None), key=lambda i: -float(values[i] or 0.0))
        kept += ranked[: max(1, math.floor(keep * len(rows) + 0.5))]
    return sorted(kept)


def accuracy(found: Sequence[float | None]) -> WinRate:
    """Share of pairs whose chosen side has the higher score, ties half, with its Wilson interval."""
    good = [m for m in found if m is not None]
    return win_rate(good, [0.0] * len(good))


def row_of(pair: PreferencePair, margin: float | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    """A pair as a JSON line; the model's margin is ``confidence``, for ``margin`` is a Bradley-Terry loss's own."""
    own = {"margin": pair.margin} if pair.margin else {}
    return {
        "id": pair.id,
        "prompt": [dict(m) for m in pair.prompt],
        "chosen": pair.chosen,
        "rejected": pair.rejected,
        **own,
        **extra,
        "confidence": margin,
    }


def summary(found: Sequence[float | None], kept: Sequence[int]) -> dict[str, Any]:
    """Margins of the kept pairs and of all: mean size, and the share whose label the model denies."""

    def facts(rows: Sequence[int]) -> dict[str, Any]:
        good = [m for i in rows if (m := found[i]) is not None]
        return {
            "pairs": len(rows),
            "mean_abs_margin": sum(map(abs, good)) / len(good) if good else None,
            "label_denied": sum(m < 0 for m in good) / len(good) if good else None,
        }

    return {"all": facts(range(len(found))), "kept": facts(kept), "unscored": sum(m is None for m in found)}

"""Which preference pairs a reward model is sure of: ``|r(chosen) - r(rejected)|``, and the top fraction by it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlhf_core.data import DatasetError, PreferencePair, Prompt
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import request_seed
from rlhf_core.runs import win_rate

By = Literal["absolute", "signed", "random"]


def margins(reward: Any, pairs: Sequence[PreferencePair]) -> list[float | None]:
    """``r(chosen) - r(rejected)`` of every pair; None where a side has no score."""
    prompts = [Prompt(p.id, p.prompt, source=p.source) for p in pairs]
    samples = [Sample(prompt, text) for prompt, pair in zip(prompts, pairs) for text in (pair.chosen, pair.rejected)]
    scores = list(reward.score(samples))
    differences = [score_difference(c, r) for c, r in zip(scores[::2], scores[1::2], strict=True)]
    if pairs and all(margin is None for margin in differences):
        bad = next(s for s in scores if not s.ok)
        raise DatasetError(
            "the reward has no score for any pair",
            why=f"first: {bad.status.value}: {bad.detail}",
            fix="fix the reward, or choose another",
        )
    return differences


def score_difference(chosen: Score, rejected: Score) -> float | None:
    if chosen.value is None or rejected.value is None or not (chosen.ok and rejected.ok):
        return None
    return float(chosen.value) - float(rejected.value)


def confidences(
    margins: Sequence[float | None], pairs: Sequence[PreferencePair], by: By, seed: int
) -> list[float | None]:
    """What pairs are ranked by: ``absolute`` margin, ``signed`` margin, or ``random`` by id and seed."""
    if by == "random":
        return [request_seed(seed, "filter", p.id) / 2**63 for p in pairs]
    if by == "absolute":
        return [None if margin is None else abs(margin) for margin in margins]
    return list(margins)


def top(values: Sequence[float | None], keep: float, strata: Sequence[str]) -> list[int]:
    """Indices of the highest ``keep`` of each stratum, at least one, in their order; missing values are never kept.

    The share is of all pairs of the stratum; of equal values the first are kept.

    Example:
        >>> top([0.1, 0.9, 0.5, None], 0.5, ["a", "a", "b", "b"])
        [1, 2]
    """
    kept_rows: list[int] = []
    for stratum in dict.fromkeys(strata):
        rows = [i for i, s in enumerate(strata) if s == stratum]
        ranked = sorted((i for i in rows if values[i] is not None), key=lambda i: -float(values[i] or 0.0))
        kept_rows += ranked[: max(1, math.floor(keep * len(rows) + 0.5))]
    return sorted(kept_rows)


def accuracy(margins: Sequence[float | None]) -> Any:
    """Win rate of the chosen sides: ``rate``, ties half, with its Wilson interval (``low``, ``high``) and ``n``."""
    scored = [m for m in margins if m is not None]
    return win_rate(scored, [0.0] * len(scored))


def row_of(pair: PreferencePair, margin: float | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    """A pair as a JSON line; the model's margin is ``confidence``, for ``margin`` is a Bradley-Terry loss's own."""
    pair_margin = {"margin": pair.margin} if pair.margin else {}
    return {
        "id": pair.id,
        "prompt": [dict(m) for m in pair.prompt],
        "chosen": pair.chosen,
        "rejected": pair.rejected,
        **pair_margin,
        **extra,
        "confidence": margin,
    }


def summary(margins: Sequence[float | None], kept_rows: Sequence[int]) -> dict[str, Any]:
    """Margins of the kept pairs, of all, and of each quarter of all by size, smallest first: mean size, and the share
    whose label the model denies."""

    def statistics(rows: Sequence[int]) -> dict[str, Any]:
        scored = [m for i in rows if (m := margins[i]) is not None]
        return {
            "pairs": len(rows),
            "mean_abs_margin": sum(map(abs, scored)) / len(scored) if scored else None,
            "label_denied": sum(m < 0 for m in scored) / len(scored) if scored else None,
        }

    scored_rows = [i for i, margin in enumerate(margins) if margin is not None]
    ranked = sorted(scored_rows, key=lambda i: abs(margins[i] or 0.0))
    ends = [len(ranked) * quarter // 4 for quarter in range(5)]
    return {
        "all": statistics(range(len(margins))),
        "quarters": [statistics(ranked[start:end]) for start, end in itertools.pairwise(ends)] if ranked else [],
        "kept": statistics(kept_rows),
        "unscored": sum(margin is None for margin in margins),
    }

"""What the rows of an evaluation say, per category and over all; what has no verdict is counted apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data import json_values
from rlhf_eval.statistics import mean_interval

Row = Mapping[str, Any]
MEANS = ("process", "calls", "requests", "prompt_tokens", "completion_tokens", "seconds")


def report(rows: Sequence[Row], trials: int = 1) -> dict[str, Any]:
    categories = dict.fromkeys(r["category"] for r in rows)
    levels = sorted({r["level"] for r in rows if r.get("level") is not None})
    return {
        **figures(rows, trials),
        "categories": {c: figures([r for r in rows if r["category"] == c], trials) for c in categories},
        **(
            {"levels": {str(n): figures([r for r in rows if r["level"] == n], trials) for n in levels}}
            if levels
            else {}
        ),
    }


def figures(rows: Sequence[Row], trials: int = 1) -> dict[str, Any]:
    """Of some rows: the share of right answers and the mean value with 95 % intervals over tasks, and the rest."""
    judged = [r for r in rows if r["value"] is not None]
    by_task = {name: [r for r in judged if r["task"] == name] for name in dict.fromkeys(r["task"] for r in judged)}
    shares = [sum(bool(r["right"]) for r in group) / len(group) for group in by_task.values()]
    values = [sum(r["value"] for r in group) / len(group) for group in by_task.values()]
    return {
        "tasks": len({r["task"] for r in rows}),
        "rows": len(rows),
        "missing": len(rows) - len(judged),
        "right": interval(shares),
        "answer": interval(values),
        **{name: mean([r[name] for r in judged if r[name] is not None]) for name in MEANS},
        "cost_usd": sum(r["cost_usd"] for r in rows),
        "stop_reasons": dict(Counter(r["stop_reason"] for r in rows).most_common()),
        **(
            {"pass^k": {str(k): pass_hat_k(list(by_task.values()), k) for k in range(1, trials + 1)}}
            if trials > 1
            else {}
        ),
    }


def interval(values: Sequence[float]) -> dict[str, float | None]:
    return json_values(mean_interval(values)._asdict())


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def pass_hat_k(groups: Sequence[Sequence[Row]], k: int) -> float | None:
    r"""Chance that k trials are all right: mean of :math:`\binom{c}{k} / \binom{n}{k}` (arXiv:2406.12045, section
    3)."""
    shares = [
        math.comb(sum(bool(r["right"]) for r in group), k) / math.comb(len(group), k)
        for group in groups
        if len(group) >= k
    ]
    return mean(shares)

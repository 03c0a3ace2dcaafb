"""What becomes of a published difference. It is

reproduced              the 95 % interval of our difference (over tasks, paired) holds the claimed one and lies above
                        zero; of a claimed difference of zero: it holds zero and is at most 20 points long
contradicted            it does not hold the claimed one, and is short enough for that to mean something: at most twice
                        as long as the claimed difference (20 points for less than 10)
not resolvable here     anything else; always below 30 tasks, or where neither agent got a single one right
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_eval.statistics import paired_difference
from rlhf_plugin_agents.commands import compare
from rlhf_studies.agent_claims.claims import Claim

ENOUGH = 30
"""Fewer tasks decide nothing."""
NO = "not resolvable here"
Row = Mapping[str, Any]


def of(rows: Sequence[Row], category: str = "") -> list[Row]:
    """Rows of a category, or of a level as ``level 1``; "" is all."""
    if category.startswith("level "):
        return [r for r in rows if str(r.get("level")) == category.removeprefix("level ")]
    return [r for r in rows if not category or r["category"] == category]


def right(rows: Sequence[Row], category: str = "") -> float | None:
    judged = [r for r in of(rows, category) if r["value"] is not None]
    return sum(bool(r["right"]) for r in judged) / len(judged) if judged else None


def verdict(claim: Claim, rows: Mapping[tuple[str, str], Sequence[Row]]) -> dict[str, Any]:
    verdict_row = {"claim": claim.text, "published_points": claim.points}
    first, second = (of(rows.get((claim.suite, agent), ()), claim.category) for agent in (claim.first, claim.second))
    result = compare(first, second)
    if not result["tasks"]:
        return {**verdict_row, "verdict": f"{NO}: no task that both have a verdict on"}
    difference = of_values(first, second) if claim.by == "value" else result["difference"]
    points, low, high = (100 * difference[key] for key in ("value", "low", "high"))
    shares = {"first": right(first), "second": right(second)}
    measured = {"tasks": result["tasks"], **shares, "points": points, "low": low, "high": high}
    said = called(claim.points, low, high, result["tasks"]) if any(shares.values()) else f"{NO}: nothing is right"
    return {**verdict_row, **measured, "mcnemar": result["mcnemar"], "verdict": said}


def of_values(first: Sequence[Row], second: Sequence[Row]) -> dict[str, float]:
    """The paired difference of the tasks' values, where there is one trial of each."""
    a, b = ({r["task"]: float(r["value"]) for r in rows if r["value"] is not None} for rows in (first, second))
    shared = [task for task in a if task in b]
    return dict(paired_difference([a[t] for t in shared], [b[t] for t in shared])._asdict())


def called(points: float, low: float, high: float, tasks: int) -> str:
    if tasks < ENOUGH:
        return f"{NO}: {tasks} tasks"
    if low <= points <= high:
        return "reproduced" if (low > 0 if points > 0 else points == 0 and high - low <= 20) else NO
    return "contradicted" if high - low <= 2 * max(abs(points), 10) else NO

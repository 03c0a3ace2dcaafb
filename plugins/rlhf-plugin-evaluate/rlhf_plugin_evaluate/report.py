"""From rows to the table and the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from rlhf_plugin_evaluate.responses import values
from rlhf_plugin_evaluate.winning import Rate, interval, length_controlled, plain, wins

Rows = Sequence[Mapping[str, Any]]


def measure(rows: Rows) -> dict[str, Any]:
    """What one policy's rows say without another's: reward, gold parts, lengths, KL. Intervals are 95 %."""
    figures: dict[str, Any] = {
        "prompts": len(rows),
        "tokens": fmean(r["tokens"] for r in rows),
        "truncated": fmean(r["finish_reason"] == "length" for r in rows),
    }
    scores = [v for v in values(rows, "reward") if v is not None]
    if any("reward" in r for r in rows):
        figures["reward"] = {"scored": len(scores)}
        if scores:
            figures["reward"] |= {"mean": fmean(scores), "std": pstdev(scores), "interval": interval(scores)[1:]}
    golds = [r["gold"] for r in rows if r.get("gold")]
    if golds:
        figures["gold"] = {k: fmean(float(g[k]) for g in golds if k in g) for k in golds[0]}
    if all("kl" in r for r in rows):
        centre, low, high = interval([r["kl_k3"] for r in rows])
        tokens = sum(r["tokens"] for r in rows)
        figures["kl"] = {
            "per_token": sum(r["kl_k3"] for r in rows) / max(tokens, 1),
            "per_sequence": centre,
            "per_sequence_interval": [low, high],
            "per_sequence_k1": fmean(r["kl"] for r in rows),
        }
    return figures


def against(rows: Rows, base: Rows, judge_rows: Rows | None, seed: int) -> dict[str, Any]:
    """Win rates over the baseline by everything that can compare: gold, reward, judge."""
    outcomes: dict[str, list[float | None]] = {}
    for by in ("gold", "reward"):
        ours, theirs = values(rows, by), values(base, by)
        if any(v is not None for v in ours):
            outcomes[by] = wins(ours, theirs)
    if judge_rows is not None:
        outcomes["judge"] = [r["outcome"] for r in judge_rows]
    lengths, base_lengths = [r["tokens"] for r in rows], [r["tokens"] for r in base]
    return {
        by: {
            "win_rate": shown(plain(shares)),
            "length_controlled": shown(length_controlled(shares, lengths, base_lengths, seed)),
            "ties": shares.count(0.5),
            "missing": shares.count(None),
        }
        for by, shares in outcomes.items()
    }


def shown(rate: Rate | None) -> dict[str, Any] | None:
    """JSON form of a rate."""
    return None if rate is None else {"rate": rate.rate, "interval": [rate.low, rate.high], "prompts": rate.n}


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows for people: the baseline first."""
    policies: Mapping[str, Any] = result["policies"]
    comparisons = [by for by in ("gold", "reward", "judge") if any(by in p.get("wins", {}) for p in policies.values())]
    columns = [(header, path) for header, path in COLUMNS if any(dig(p, path) is not None for p in policies.values())]
    headers = ["policy"]
    for by in comparisons:
        headers += [f"win rate by {by}", "length-controlled"]
    headers += [header for header, _ in columns]
    rows: list[list[str]] = []
    for name, policy in policies.items():
        row = [name]
        for by in comparisons:
            rates = policy.get("wins", {}).get(by, {})
            row += [rate(rates.get("win_rate")), rate(rates.get("length_controlled"))]
        rows.append(row + [number(dig(policy, path)) for _, path in columns])
    return headers, rows


def gaps(result: Mapping[str, Any]) -> list[str]:
    """One line for every comparison that lacks outcomes."""
    return [
        f"{name}: {won['missing']} of {policy['prompts']} prompts have no outcome by {by} and are left out"
        for name, policy in result["policies"].items()
        for by, won in policy.get("wins", {}).items()
        if won["missing"]
    ]


COLUMNS = (
    ("gold", "gold.value"),
    ("hollow", "gold.hollow"),
    ("reward", "reward.mean"),
    ("std", "reward.std"),
    ("KL/token", "kl.per_token"),
    ("KL/sequence", "kl.per_sequence"),
    ("tokens", "tokens"),
    ("cut off", "truncated"),
)


def dig(value: Any, path: str) -> Any:
    """``dig({"a": {"b": 1}}, "a.b")`` is 1; None where there is nothing."""
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def rate(rate_json: Mapping[str, Any] | None) -> str:
    """Example: ``0.642 (0.574 to 0.706)``"""
    if not rate_json:
        return ""
    low, high = rate_json["interval"]
    return f"{rate_json['rate']:.3f} ({low:.3f} to {high:.3f})"


def number(value: Any) -> str:
    """Three digits, or nothing."""
    return "" if value is None else f"{value:.3f}"

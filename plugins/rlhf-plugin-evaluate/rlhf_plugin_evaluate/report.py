"""From rows to the table and the JSON.

Suffix ``_N``: prompts. A win is 1, a tie 0.5, a loss 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlhf_core.runs import win_rate
from rlhf_eval.statistics import percentile_tails, t_quantile
from rlhf_plugin_evaluate.responses import values

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


def per_nat(rows: Rows, base: Rows, seed: int, resamples: int = 2000) -> dict[str, Any] | None:
    """What a policy gains over the baseline for each nat of KL per completion (k3), with a bootstrap interval over
    prompts: of the reward, or of gold where nothing has a reward. None without KL, a score, or any distance."""
    by = "reward" if any("reward" in r for r in rows) else "gold"
    pairs = zip(values(rows, by), values(base, by), (r.get("kl_k3") for r in rows), strict=True)
    both = [(a - b, float(kl)) for a, b, kl in pairs if a is not None and b is not None and kl is not None]
    gain_N, kl_N = np.array(both, np.float64).reshape(-1, 2).T
    if not len(both) or kl_N.mean() < 1e-6:
        return None
    picks = np.random.default_rng([seed, 19]).integers(0, len(both), (resamples, len(both)))
    several = gain_N[picks].mean(1) / np.maximum(kl_N[picks].mean(1), 1e-9)
    low, high = np.quantile(several, percentile_tails(len(both)))
    return {"by": by, "value": float(gain_N.mean() / kl_N.mean()), "interval": [float(low), float(high)]}


def shown(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {"rate": rate.rate, "interval": [rate.low, rate.high], "prompts": rate.n}


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
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
        rows.append(row + [cell(policy, path) for _, path in columns])
    return headers, rows


def gaps(result: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {won['missing']} of {policy['prompts']} prompts have no outcome by {by} and are left out"
        for name, policy in result["policies"].items()
        for by, won in policy.get("wins", {}).items()
        if won["missing"]
    ]


def side_by_side(rows: Mapping[str, Rows], most: int = 20) -> str:
    """A page of the first prompts, each with what every policy (name -> rows) answers."""
    parts: list[str] = []
    for answers in list(zip(*rows.values(), strict=True))[:most]:
        parts.append(f"## {answers[0]['id']}\n\n{quoted(answers[0]['prompt'])}\n")
        for name, row in zip(rows, answers, strict=True):
            score = f", reward {row['reward']:.3f}" if row.get("reward") is not None else ""
            parts.append(f"**{name}** ({row['tokens']} tokens{score})\n\n{quoted(row['completion'])}\n")
    return "\n".join(parts)


def quoted(text: str) -> str:
    """As a Markdown quotation, as it stands."""
    return "\n".join(f">     {line}".rstrip() for line in text.splitlines() or [""])


COLUMNS = (
    ("gold", "gold.value"),
    ("hollow", "gold.hollow"),
    ("reward", "reward.mean"),
    ("std", "reward.std"),
    ("KL/token", "kl.per_token"),
    ("KL/sequence", "kl.per_sequence"),
    ("gain/nat", "per_nat.value"),
    ("tokens", "tokens"),
    ("cut off", "truncated"),
)


def dig(value: Any, path: str) -> Any:
    """``dig({"a": {"b": 1}}, "a.b")`` is 1; None where there is nothing."""
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def cell(policy: Mapping[str, Any], path: str) -> str:
    """A figure, with the interval beside it where the table shows one."""
    if path == "per_nat.value" and (found := policy.get("per_nat")):
        return "{:.3f} ({:.3f} to {:.3f})".format(found["value"], *found["interval"])
    return number(dig(policy, path))


def rate(rate_json: Mapping[str, Any] | None) -> str:
    """Example: ``0.642 (0.574 to 0.706)``"""
    if not rate_json:
        return ""
    low, high = rate_json["interval"]
    return f"{rate_json['rate']:.3f} ({low:.3f} to {high:.3f})"


def number(value: Any) -> str:
    return "" if value is None else f"{value:.3f}"


Floats = npt.NDArray[np.float64]
RIDGE = 0.5
"""Penalty on the length coefficient (a normal prior of variance 2), without which wins that lengths alone separate
would make it infinite."""


class Rate(NamedTuple):
    rate: float
    low: float
    high: float
    n: int


def wins(ours: Sequence[float | None], theirs: Sequence[float | None], tolerance: float = 1e-9) -> list[float | None]:
    return [
        None if a is None or b is None else 1.0 if a > b + tolerance else 0.0 if b > a + tolerance else 0.5
        for a, b in zip(ours, theirs, strict=True)
    ]


def plain(outcomes: Sequence[float | None]) -> Rate | None:
    """Mean outcome with Wilson's interval; None if no prompt has an outcome."""
    decided = [o for o in outcomes if o is not None]
    return Rate(*win_rate(decided, [0.5] * len(decided))) if decided else None


def length_controlled(
    outcomes: Sequence[float | None],
    lengths: Sequence[int],
    base_lengths: Sequence[int],
    seed: int = 0,
    resamples: int = 500,
) -> Rate | None:
    r"""Win rate that is expected if both wrote equally long responses.

    The generalised linear model of AlpacaEval 2 (Dubois et al. 2024, "Length-Controlled AlpacaEval", eq. 2), of one
    pair of models and so without its term for the difficulty of an instruction:

    .. math:: P(win_n) = \sigma\big(\theta + \phi \tanh(\Delta_n / s)\big)

    with :math:`\Delta` the difference in tokens and s its standard deviation. Outcomes of 0.5 count as half a win and
    half a loss. The estimate is :math:`\sigma(\theta)`; its interval is that of a bootstrap over prompts."""
    rows = [(o, a - b) for o, a, b in zip(outcomes, lengths, base_lengths, strict=True) if o is not None]
    if not rows:
        return None
    won_N, gap_N = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    gap_N = np.tanh(gap_N / max(float(gap_N.std()), 1e-9))
    draw = np.random.default_rng([seed, 17])
    picks = (draw.integers(0, len(rows), len(rows)) for _ in range(resamples))
    several = [_intercept(won_N[i], gap_N[i]) for i in picks]
    low, high = np.quantile(several, percentile_tails(len(rows)))
    return Rate(_intercept(won_N, gap_N), float(low), float(high), len(rows))


def _intercept(won_N: Floats, gap_N: Floats) -> float:
    """sigmoid(theta) of the fit, by Newton's method; half a win and half a loss are added so that it is finite."""
    design = np.stack([np.ones_like(gap_N), gap_N], 1)
    n = len(won_N)
    weights, penalty = np.zeros(2), np.array([0.0, RIDGE])
    target = won_N + (0.5 - won_N) / (n + 1)
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (target - p) - penalty * weights
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty + 1e-9)
        step = np.linalg.solve(hessian, gradient)
        weights = weights + np.clip(step, -2, 2)
        if float(np.abs(step).max()) < 1e-8:
            break
    return float(1 / (1 + np.exp(-weights[0])))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and Student's 95 % interval of it."""
    array = np.asarray(values, np.float64)
    centre = float(array.mean())
    half = t_quantile(len(array) - 1) * float(array.std(ddof=1)) / len(array) ** 0.5 if len(array) > 1 else 0.0
    return centre, centre - half, centre + half

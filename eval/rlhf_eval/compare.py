"""Two evaluations on the same prompts. What differs by chance is told from what does not, prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.api import ConfigError
from rlhf_eval.report import by_prompt, judged, right
from rlhf_eval.statistics import mcnemar, mean_interval, paired_difference
from rlhf_eval.store import Stored, differences

Row = Mapping[str, Any]
EXPECTED = ("model", "seed", "prompts_per_chunk", "suite.chunk", "suite.samples", "rows", "shots", "suite.limit")
"""Settings that two compared evaluations may differ in; other differences are told."""
EXAMPLES = 5


def compare(first: Stored, second: Stored) -> dict[str, Any]:
    """Difference of two evaluations over the prompts that both judged.

    Returns:
        JSON values: both means, their difference with the paired bootstrap's interval over prompts, and McNemar's exact
        test on the first completion of each prompt (prompts lost and gained), where both judged that one.

    Raises:
        ConfigError: they share no prompt, or a shared one was asked with another text or answer.
    """
    a, b = (by_prompt(judged(s.rows)) for s in (first, second))
    shared = [name for name in a if name in b]
    if not shared:
        raise ConfigError(
            "the two evaluations have no prompt in common",
            where=f"{first.path}: {next(iter(a), 'none')}; {second.path}: {next(iter(b), 'none')}",
            fix="evaluate both on the same rows",
        )
    changed = [n for n in shared if a[n][0]["answer"] != b[n][0]["answer"] or _question(a[n][0]) != _question(b[n][0])]
    if changed:
        raise ConfigError(
            f"prompt '{changed[0]}' is not the same in both ({len(changed)} such prompts)",
            why="it has another text or reference answer",
            where=f"{first.path}, {second.path}",
            fix="evaluate both with the same rows, style and shots",
        )
    values = [[_mean(found[name]) for name in shared] for found in (a, b)]
    firsts = [{name: right(r) for name in shared for r in found[name] if r["sample"] == 0} for found in (a, b)]
    flips = [(name, value, firsts[1][name]) for name, value in firsts[0].items() if name in firsts[1]]
    lost, gained = ([n for n, x, y in flips if x == was and y == 1 - was] for was in (1.0, 0.0))
    other = [
        (key, then, now)
        for key, then, now in differences(first.settings, second.settings)
        if not key.startswith(EXPECTED)
    ]
    return {
        "first": str(first.path),
        "second": str(second.path),
        "prompts": len(shared),
        "only_first": len(a) - len(shared),
        "only_second": len(b) - len(shared),
        "settings": [{"key": k, "first": x, "second": y} for k, x, y in other],
        "mean": [mean_interval(v)._asdict() for v in values],
        "difference": paired_difference(*values)._asdict(),
        "mcnemar": {
            "prompts": len(flips),
            "lost": len(lost),
            "gained": len(gained),
            "p": mcnemar(len(lost), len(gained)),
            "examples_lost": lost[:EXAMPLES],
            "examples_gained": gained[:EXAMPLES],
        },
    }


def verdict(comparison: Mapping[str, Any]) -> str:
    """One sentence on what the figures allow to say."""
    low, high = comparison["difference"]["low"], comparison["difference"]["high"]
    if low > 0 or high < 0:
        return f"the second is {'better' if low > 0 else 'worse'}: the interval of the difference excludes 0"
    widest = max(abs(low), abs(high))
    if widest == 0:
        return f"no prompt of {comparison['prompts']} came out otherwise; that shows little unless they are many"
    return f"no difference can be told from these prompts; one of up to {widest:.3f} would not have shown either"


def _mean(rows: Sequence[Row]) -> float:
    return float(sum(r["value"] for r in rows) / len(rows))


def _question(row: Row) -> Any:
    return row["prompt"]

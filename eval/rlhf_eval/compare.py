"""Two evaluations on the same prompts, compared prompt by prompt: do they differ by more than chance?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_eval.report import by_prompt, judged, right
from rlhf_eval.statistics import mcnemar, mean_interval, paired_difference
from rlhf_eval.store import Stored, differences

Row = Mapping[str, Any]
EXPECTED = ("model", "seed", "prompts_per_chunk", "suite.chunk", "suite.samples", "rows", "shots", "suite.limit")
"""Settings that two compared evaluations may differ in; other differences are reported."""
EXAMPLES = 5


def compare(first: Stored, second: Stored) -> dict[str, Any]:
    """Means over the prompts that both judged, 95 % interval of the difference, McNemar on first completions."""
    least = float(first.settings.get("suite", {}).get("pass_from", 1.0))
    a, b = by_prompt(judged(first.rows)), by_prompt(judged(second.rows))
    shared = _shared_prompts(first, second, a, b)
    first_values, second_values = ([_mean(groups[name]) for name in shared] for groups in (a, b))
    return {
        "first": str(first.path),
        "second": str(second.path),
        "prompts": len(shared),
        "only_first": len(a) - len(shared),
        "only_second": len(b) - len(shared),
        "settings": [
            {"key": key, "first": then, "second": now}
            for key, then, now in differences(first.settings, second.settings)
            if not key.startswith(EXPECTED)
        ],
        "mean": [mean_interval(first_values)._asdict(), mean_interval(second_values)._asdict()],
        "difference": paired_difference(first_values, second_values)._asdict(),
        "mcnemar": _mcnemar(*(_first_completions(groups, shared, least) for groups in (a, b))),
    }


def _shared_prompts(
    first: Stored, second: Stored, a: Mapping[str, Sequence[Row]], b: Mapping[str, Sequence[Row]]
) -> list[str]:
    shared = [name for name in a if name in b]
    if not shared:
        raise ConfigError(
            "the two evaluations have no prompt in common",
            where=f"{first.path}: {next(iter(a), 'none')}; {second.path}: {next(iter(b), 'none')}",
            fix="evaluate both on the same rows",
        )
    changed = [name for name in shared if _question(a[name][0]) != _question(b[name][0])]
    if changed:
        raise ConfigError(
            f"prompt '{changed[0]}' is not the same in both ({len(changed)} such prompts)",
            why="it has another text or reference answer",
            where=f"{first.path}, {second.path}",
            fix="evaluate both with the same rows, style and shots",
        )
    return shared


def _first_completions(groups: Mapping[str, Sequence[Row]], names: Sequence[str], least: float) -> dict[str, float]:
    """Prompt -> whether its first completion is right, where that one was judged."""
    return {name: right(row, least=least) for name in names for row in groups[name] if row["sample"] == 0}


def _mcnemar(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, Any]:
    """McNemar's exact test on the prompts that both judged, with some that changed."""
    both = [name for name in first if name in second]
    lost = [name for name in both if first[name] == 1 and second[name] == 0]
    gained = [name for name in both if first[name] == 0 and second[name] == 1]
    return {
        "prompts": len(both),
        "lost": len(lost),
        "gained": len(gained),
        "p": mcnemar(len(lost), len(gained)),
        "examples_lost": lost[:EXAMPLES],
        "examples_gained": gained[:EXAMPLES],
    }


def verdict(comparison: Mapping[str, Any]) -> str:
    low, high = comparison["difference"]["low"], comparison["difference"]["high"]
    if low > 0 or high < 0:
        better = "better" if low > 0 else "worse"
        return (
            f"{comparison['second']} is {better} than {comparison['first']}: the interval of the difference excludes 0"
        )
    widest = max(abs(low), abs(high))
    return f"no difference shows on these prompts; one of up to {widest:.3f} would not have shown either"


def _mean(rows: Sequence[Row]) -> float:
    return float(sum(r["value"] for r in rows) / len(rows))


def _question(row: Row) -> tuple[Any, Any]:
    """What must be the same in both: text and reference answer."""
    return row["prompt"], row["answer"]

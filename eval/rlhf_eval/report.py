"""What the rows of an evaluation say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.api import RlhfError
from rlhf_eval.grading import stated
from rlhf_eval.statistics import Interval, best_at_k, majority_at_k, mean_interval, pass_at_k
from rlhf_eval.styles import FOLLOW_UPS

Row = Mapping[str, Any]
MODES = ("strict", "lenient")
TRUNCATED_WARNING = 0.05
"""Share of truncated completions above which a report warns."""


def by_prompt(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each prompt, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows with a verdict; a missing one is not a wrong answer."""
    return [r for r in rows if r["status"] == "ok"]


def right(row: Row, column: str = "value") -> float:
    """1.0 where the whole of a verdict is positive; 0.0 where there is none."""
    return float(row[column] is not None and row[column] >= 1)


def sizes(samples: int) -> list[int]:
    """The values of k that are reported. Example: ``[1, 2, 4, 8, 12]`` for 12"""
    doubled = [1 << i for i in range(samples.bit_length()) if 1 << i <= samples]
    return doubled if doubled[-1] == samples else [*doubled, samples]


def report(
    rows: Sequence[Row],
    selectors: Mapping[str, Mapping[tuple[str, int], float | None]] | None = None,
) -> dict[str, Any]:
    """Everything that is said of an evaluation, as JSON values.

    Args:
        rows: of all prompts.
        selectors: name -> score of each (id, sample), for best-of-N besides the mean logprob.

    Raises:
        RlhfError: not one completion has a verdict.
    """
    good = judged(rows)
    if not good:
        statuses = dict(Counter(r["status"] for r in rows))
        first = rows[0]["detail"] if rows else "there are no rows"
        raise RlhfError(
            f"none of {len(rows)} completions could be judged",
            why=f"{statuses}; first: {first}",
            fix="fix the verifier, or give it more time: --set timeout_s=30",
        )
    groups = by_prompt(good)
    samples = max(len(g) for g in by_prompt(rows).values())
    values = [_mean([r["value"] for r in g]) for g in groups.values()]
    found: dict[str, Any] = {
        "prompts": len(by_prompt(rows)),
        "samples": samples,
        "completions": len(rows),
        "value": _plain(mean_interval(values)),
        "pass_at": curve(groups, lambda g, k: _passed(g, k), samples),
        "statuses": dict(Counter(r["status"] for r in rows)),
        "categories": dict(Counter(r["category"] for r in rows).most_common()),
        "parts": {
            n: _mean([r["parts"][n] for r in good if n in r["parts"]])
            for n in sorted({n for r in good for n in r["parts"]})
        },
        "endings": endings(rows),
    }
    if all(any(r.get(mode) is not None for r in good) for mode in MODES):
        found["modes"] = {mode: _mode(list(groups.values()), mode) for mode in MODES}
    if samples > 1:
        found["best_at"] = {"logprob": curve(groups, lambda g, k: _best(g, [r["mean_logprob"] for r in g], k), samples)}
        for name, scores in (selectors or {}).items():
            found["best_at"][name] = curve(
                groups, lambda g, k, s=scores: _best(g, [s.get((r["id"], r["sample"])) for r in g], k), samples
            )
        if any(stated(r["detail"]) is not None for r in good):
            found["majority_at"] = curve(groups, _majority, samples)
    return found


def curve(groups: Mapping[str, Sequence[Row]], estimate: Any, samples: int) -> dict[str, Any]:
    """k -> value, interval and number of prompts that have k judged samples."""
    found: dict[str, Any] = {}
    for k in sizes(samples):
        values = [estimate(g, k) for g in groups.values() if len(g) >= k]
        if values:
            found[str(k)] = {**_plain(mean_interval(values)), "prompts": len(values)}
    return found


def endings(rows: Sequence[Row]) -> dict[str, Any]:
    """How completions ended: reasons, stop strings, and the marks of something that should have ended earlier."""
    cut = [r for r in rows if r["finish_reason"] == "length"]
    return {
        "reasons": dict(Counter(r["finish_reason"] for r in rows).most_common()),
        "stop_strings": dict(Counter(r["stop"] for r in rows if r["stop"] is not None).most_common()),
        "truncated": len(cut) / len(rows),
        "truncated_right": _mean([right(r) for r in cut]) if cut else None,
        "empty": sum(not r["completion"].strip() for r in rows) / len(rows),
        "asks_itself": sum(any(m in r["completion"] for m in FOLLOW_UPS) for r in rows) / len(rows),
        "tokens": {
            "mean": _mean([r["tokens"] for r in rows]),
            "max": max(r["tokens"] for r in rows),
            "total": sum(r["tokens"] for r in rows),
        },
    }


def warnings(found: Mapping[str, Any]) -> list[str]:
    """What a reader of the figures should know first."""
    ends, said = found["endings"], []
    if ends["truncated"] > TRUNCATED_WARNING:
        said.append(
            f"{ends['truncated']:.1%} of the completions were cut at the token limit before they ended "
            "(their own value is in endings.truncated_right): raise --max-tokens, or add a stop string"
        )
    if ends["asks_itself"] > TRUNCATED_WARNING:
        said.append(
            f"{ends['asks_itself']:.1%} of the completions go on to ask themselves another question, whose "
            f"number a verifier may read. Stop strings such as {FOLLOW_UPS[0]!r} end them"
        )
    if ends["empty"] > 0:
        said.append(f"{ends['empty']:.1%} of the completions are empty")
    modes = found.get("modes")
    if modes and modes["lenient"]["value"] - modes["strict"]["value"] > 0.1:
        said.append(
            f"strict {modes['strict']['value']:.1%}, lenient {modes['lenient']['value']:.1%}: many right "
            "answers are not in the asked-for form"
        )
    missing = {s: n for s, n in found["statuses"].items() if s != "ok"}
    if missing:
        said.append(f"no verdict on {sum(missing.values())} completions ({missing}); they count neither way")
    said += [
        f"no {mode} verdict on {figures['missing']} of the judged completions; they count neither way there"
        for mode, figures in (modes or {}).items()
        if figures["missing"]
    ]
    return said


def pass_rates(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """``{"id", "pass_rate", ...}`` of each prompt, in the form that ``dataset.curriculum`` reads."""
    return [
        {
            "id": name,
            "pass_rate": _mean([right(r) for r in group]),
            "samples": len(group),
            "right": sum(map(right, group)),
        }
        for name, group in by_prompt(judged(rows)).items()
    ]


def metrics(rows: Sequence[Row]) -> dict[str, float]:
    """The figures of :func:`report` that a training run logs."""
    found = report(rows)
    out = {f"pass@{k}": v["value"] for k, v in found["pass_at"].items()}
    out |= {mode: v["value"] for mode, v in found.get("modes", {}).items()}
    out |= {f"part/{n}": v for n, v in found["parts"].items()}
    out |= {f"not_judged/{s}": float(n) for s, n in found["statuses"].items() if s != "ok"}
    ends = found["endings"]
    return {
        "value": found["value"]["value"],
        **out,
        "truncated": ends["truncated"],
        "empty": ends["empty"],
        "tokens": ends["tokens"]["mean"],
    }


def _passed(group: Sequence[Row], k: int) -> float:
    return pass_at_k(len(group), int(sum(map(right, group))), k)


def _mode(groups: Sequence[Sequence[Row]], mode: str) -> dict[str, float]:
    """Share of right answers by a verifier's mode, and how many it gave no verdict on."""
    judged_by = [[right(r, mode) for r in g if r[mode] is not None] for g in groups]
    return {
        **_plain(mean_interval([_mean(values) for values in judged_by if values])),
        "missing": sum(map(len, groups)) - sum(map(len, judged_by)),
    }


def _best(group: Sequence[Row], scores: Sequence[float | None], k: int) -> float:
    return best_at_k([right(r) for r in group], [float("nan") if s is None else s for s in scores], k)


def _majority(group: Sequence[Row], k: int) -> float:
    return majority_at_k([right(r) for r in group], [stated(r["detail"]) for r in group], k)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0


def _plain(found: Interval) -> dict[str, float]:
    return dict(found._asdict())

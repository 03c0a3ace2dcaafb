"""Figures of an evaluation, computed from its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_core.config import RlhfError
from rlhf_eval.grading import final_answer
from rlhf_eval.statistics import Interval, best_at_k, majority_at_k, mean_interval, pass_at_k
from rlhf_eval.styles import FOLLOW_UPS

Row = Mapping[str, Any]
Selectors = Mapping[str, Mapping[tuple[str, int], float | None]]
"""Name -> score of each (prompt id, sample)."""
MODES = ("strict", "lenient")
TRUNCATED_WARNING = 0.05
"""Share of truncated completions above which a report warns."""


def by_prompt(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["id"], []).append(row)
    return groups


def judged(rows: Sequence[Row]) -> list[Row]:
    """The rows with a verdict; a missing one is not a wrong answer."""
    return [r for r in rows if r["status"] == "ok"]


def right(row: Row, column: str = "value", least: float = 1.0) -> float:
    """1.0 where a verdict is ``least`` or more, by default the whole of it; 0.0 where there is none."""
    return float(row[column] is not None and row[column] >= least)


def sizes(samples: int) -> list[int]:
    """The values of k that are reported. Example: ``[1, 2, 4, 8, 12]`` for 12"""
    doubled = [1 << i for i in range(samples.bit_length()) if 1 << i <= samples]
    return doubled if doubled[-1] == samples else [*doubled, samples]


def report(
    rows: Sequence[Row],
    selectors: Selectors | None = None,
    least: float = 1.0,
) -> dict[str, Any]:
    """All figures as JSON values; ``selectors`` score each (id, sample) for best-of-N besides the mean logprob, and
    verdicts of ``least`` or more are right."""
    judged_rows = judged(rows)
    statuses = dict(Counter(r["status"] for r in rows))
    if not judged_rows:
        first = rows[0]["detail"] if rows else "there are no rows"
        raise RlhfError(
            f"none of {len(rows)} completions could be judged",
            why=f"{statuses}; first: {first}",
            fix="fix the verifier, or give it more time: --set timeout_s=30",
        )
    groups = by_prompt(judged_rows)
    samples = max(len(group) for group in by_prompt(rows).values())
    figures: dict[str, Any] = {
        "prompts": len(by_prompt(rows)),
        "samples": samples,
        "completions": len(rows),
        "value": _plain(mean_interval([_mean([r["value"] for r in group]) for group in groups.values()])),
        **({} if least == 1 else {"pass_from": least}),
        "pass_at": curve(groups, lambda group, k: _passed(group, k, least), samples),
        "statuses": statuses,
        "categories": dict(Counter(r["category"] for r in rows).most_common()),
        "parts": _parts(judged_rows),
        "endings": endings(rows),
    }
    if all(any(r.get(mode) is not None for r in judged_rows) for mode in MODES):
        figures["modes"] = {mode: _mode(list(groups.values()), mode) for mode in MODES}
    if samples > 1:
        figures["best_at"] = _best_curves(groups, selectors or {}, samples, least)
        if any(final_answer(r["detail"]) is not None for r in judged_rows):
            figures["majority_at"] = curve(groups, lambda group, k: _majority(group, k, least), samples)
    return figures


def _parts(rows: Sequence[Row]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row["parts"]})
    return {name: _mean([row["parts"][name] for row in rows if name in row["parts"]]) for name in names}


def _best_curves(
    groups: Mapping[str, Sequence[Row]], selectors: Selectors, samples: int, least: float
) -> dict[str, Any]:
    def best_by(score_of: Callable[[Row], float | None]) -> dict[str, Any]:
        return curve(groups, lambda group, k: _best(group, [score_of(row) for row in group], k, least), samples)

    curves = {"logprob": best_by(lambda row: row["mean_logprob"])}
    for name, scores in selectors.items():
        curves[name] = best_by(lambda row, scores=scores: scores.get((row["id"], row["sample"])))
    return curves


def curve(
    groups: Mapping[str, Sequence[Row]], estimate: Callable[[Sequence[Row], int], float], samples: int
) -> dict[str, Any]:
    """k -> value, interval and number of prompts that have k judged samples."""
    points: dict[str, Any] = {}
    for k in sizes(samples):
        values = [estimate(group, k) for group in groups.values() if len(group) >= k]
        if values:
            points[str(k)] = {**_plain(mean_interval(values)), "prompts": len(values)}
    return points


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


def warnings(figures: Mapping[str, Any]) -> list[str]:
    endings, texts = figures["endings"], list[str]()
    if "prompt_form" in figures:
        texts.append(figures["prompt_form"])
    if "seen_in_training" in figures:
        texts.append(f"{figures['seen_in_training']['warning']}: the figures are too good")
    if endings["truncated"] > TRUNCATED_WARNING:
        texts.append(
            f"{endings['truncated']:.1%} of the completions were cut at the token limit before they ended "
            "(their own value is in endings.truncated_right): raise --max-tokens, or add a stop string"
        )
    if endings["asks_itself"] > TRUNCATED_WARNING:
        texts.append(
            f"{endings['asks_itself']:.1%} of the completions go on to ask themselves another question, whose "
            f"number a verifier may read. Stop strings such as {FOLLOW_UPS[0]!r} end them"
        )
    if endings["empty"] > 0:
        texts.append(f"{endings['empty']:.1%} of the completions are empty")
    modes = figures.get("modes")
    if modes and modes["lenient"]["value"] - modes["strict"]["value"] > 0.1:
        texts.append(
            f"strict {modes['strict']['value']:.1%}, lenient {modes['lenient']['value']:.1%}: many right "
            "answers are not in the required form"
        )
    missing = {s: n for s, n in figures["statuses"].items() if s != "ok"}
    if missing:
        texts.append(f"no verdict on {sum(missing.values())} completions ({missing}); they count neither way")
    for mode, of_mode in (modes or {}).items():
        if of_mode["missing"]:
            texts.append(
                f"no {mode} verdict on {of_mode['missing']} of the judged completions; they count neither way there"
            )
    return texts


def pass_rates(rows: Sequence[Row], least: float = 1.0) -> list[dict[str, Any]]:
    """``{"id", "pass_rate", ...}`` of each prompt, in the form that ``dataset.curriculum`` reads."""
    rights = {name: [right(r, least=least) for r in group] for name, group in by_prompt(judged(rows)).items()}
    return [
        {"id": name, "pass_rate": _mean(values), "samples": len(values), "right": sum(values)}
        for name, values in rights.items()
    ]


def metrics(rows: Sequence[Row], least: float = 1.0) -> dict[str, float]:
    """The figures of :func:`report` that a training run logs."""
    figures = report(rows, least=least)
    by_name = {f"pass@{k}": v["value"] for k, v in figures["pass_at"].items()}
    by_name |= {mode: v["value"] for mode, v in figures.get("modes", {}).items()}
    by_name |= {f"part/{n}": v for n, v in figures["parts"].items()}
    by_name |= {f"not_judged/{s}": float(n) for s, n in figures["statuses"].items() if s != "ok"}
    ends = figures["endings"]
    return {
        "value": figures["value"]["value"],
        **by_name,
        "truncated": ends["truncated"],
        "empty": ends["empty"],
        "tokens": ends["tokens"]["mean"],
    }


def _passed(group: Sequence[Row], k: int, least: float) -> float:
    return pass_at_k(len(group), int(sum(right(r, least=least) for r in group)), k)


def _mode(groups: Sequence[Sequence[Row]], mode: str) -> dict[str, float]:
    """Share of right answers by a verifier's mode, and how many it gave no verdict on."""
    judged_by = [[right(r, mode) for r in g if r[mode] is not None] for g in groups]
    return {
        **_plain(mean_interval([_mean(values) for values in judged_by if values])),
        "missing": sum(map(len, groups)) - sum(map(len, judged_by)),
    }


def _best(group: Sequence[Row], scores: Sequence[float | None], k: int, least: float) -> float:
    return best_at_k([right(r, least=least) for r in group], [float("nan") if s is None else s for s in scores], k)


def _majority(group: Sequence[Row], k: int, least: float) -> float:
    return majority_at_k([right(r, least=least) for r in group], [final_answer(r["detail"]) for r in group], k)


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0


def _plain(interval: Interval) -> dict[str, float]:
    return dict(interval._asdict())

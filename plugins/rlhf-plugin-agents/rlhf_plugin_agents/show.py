"""Reports as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rlhf_core.cli import table

COLUMNS = ("", "tasks", "right", "95 %", "answer", "process", "calls", "tokens", "USD", "s", "missing", "stopped by")
BEFORE, AFTER = 20, 60
"""Characters before and from the first difference of two results on."""


def show(results: Mapping[str, Any]) -> None:
    for one in results["evaluations"]:
        click.echo(f"\n{one['suite']}, {one['agent']}")
        parts = {"all": one, **one["categories"], **{f"level {k}": v for k, v in one.get("levels", {}).items()}}
        trials = tuple(f"pass^{k}" for k in one.get("pass^k", ()))
        table((*COLUMNS, *trials), [_row(name, part) for name, part in parts.items()])
        if recording := one.get("recording"):
            click.echo(
                f"{recording['same_reward']} of {recording['trajectories']} have the published reward; "
                f"{recording['differing_results']} results differ from the recording"
            )
            if recording["other_task"]:
                click.echo(f"{recording['other_task']} were recorded with other gold actions or outputs of their task")
            for r in recording["other_rewards"]:
                click.echo(f"  {r['task']}, trial {r['trial']}: reward {r['value']:g}; {r['detail']}")
            for d in recording["examples"]:
                call = f"{d['task']}, trial {d['trial']}, call {d['call']} ({d['name']})"
                click.echo(f"  {call}: {_apart(d['recorded'], d['result'])}")
        if one["missing"]:
            click.echo(f"{one['missing']} without a verdict: the same command plays them again")
        click.echo(f"rows, report and transcripts (report.html): {one['folder']}")
    for pair in results["comparisons"]:
        click.echo(f"\n{pair['suite']}, {pair['second']} minus {pair['first']}: {_difference(pair)}")
        for name, part in pair["categories"].items():
            click.echo(f"  {name}: {_difference(part)}")


def _difference(pair: Mapping[str, Any]) -> str:
    if not pair["tasks"]:
        return "no task that both have a verdict on"
    d, b, m, w = pair["difference"], pair["bootstrap"], pair["mcnemar"], pair["wilcoxon_p"]
    return (
        f"{d['value']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}], bootstrap [{b['low']:+.3f}, {b['high']:+.3f}], on "
        f"{pair['tasks']} tasks; McNemar {m['lost']} lost, "
        f"{m['gained']} gained, p {m['p']:.3g}; Wilcoxon p {'-' if w is None else format(w, '.3g')}"
    )


def _apart(recorded: str, result: str) -> str:
    """Both texts around the first character in which they differ."""
    pairs = enumerate(zip(recorded, result))
    at = next((n for n, (a, b) in pairs if a != b), min(len(recorded), len(result)))
    then, now = (f"{'…' * (at > BEFORE)}{text[max(0, at - BEFORE) : at + AFTER]}" for text in (recorded, result))
    return f"they differ from character {at + 1} on: {then!r} then, {now!r} now"


def _row(name: str, part: Mapping[str, Any]) -> list[str]:
    right = part["right"]
    between = "-" if right["low"] is None else f"{right['low']:.3f} to {right['high']:.3f}"
    tokens = None if part["prompt_tokens"] is None else part["prompt_tokens"] + part["completion_tokens"]
    return [
        name, str(part["tasks"]), _number(right["value"]), between, _number(part["answer"]["value"]),
        _number(part["process"]), _number(part["calls"], 1), _number(tokens, 0), f"{part['cost_usd']:.4f}",
        _number(part["seconds"], 2), str(part["missing"]),
        ", ".join(f"{reason} {count}" for reason, count in part["stop_reasons"].items()),
        *(_number(v) for v in part.get("pass^k", {}).values()),
    ]  # fmt: skip


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

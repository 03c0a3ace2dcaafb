"""A report for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import table
from rlhf_eval.plot import curves
from rlhf_eval.report import warnings

Row = Mapping[str, Any]
BAD = ("not judged", "neither", "wrong", "format only", "answer only")


def interval(estimate: Mapping[str, Any]) -> str:
    """Example: ``0.420 (0.360 to 0.480)``"""
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


def show(title: str, result: Mapping[str, Any], rows: Sequence[Row], failures: int = 2) -> None:
    click.secho(title, bold=True)
    prompt_counts = (
        f"{result['prompts']} prompts, {result['samples']} completion{'s' * (result['samples'] > 1)} of each"
    )
    click.echo(f"{prompt_counts}, sampled and judged in {result['seconds']:.0f} s; 95 % intervals\n")
    if "pass_from" in result:
        click.echo(f"a verdict of {result['pass_from']:g} or more counts as right\n")
    named = curves(result)
    table(("k", *named), ([k, *(interval(c[k]) if k in c else "" for c in named.values())] for k in result["pass_at"]))
    for mode, value in result.get("modes", {}).items():
        click.echo(f"{mode}: {interval(value)}")
    for column, values in result.get("by", {}).items():
        click.echo()
        table((column, "prompts", "right"), ((name, v["prompts"], interval(v)) for name, v in values.items()))
        click.echo()
    if result["parts"]:
        click.echo("parts: " + ", ".join(f"{n} {v:.3f}" for n, v in result["parts"].items()))
    click.echo()
    total = result["completions"]
    table(
        ("category", "completions", "share"),
        ((name, count, f"{count / total:.1%}") for name, count in result["categories"].items()),
    )
    ends = result["endings"]
    stops = "; ".join(f"{s!r} {n}" for s, n in ends["stop_strings"].items())
    reasons = ", ".join(f"{reason} {count / total:.1%}" for reason, count in ends["reasons"].items())
    click.echo(f"\nended by: {reasons}" + (f" ({stops})" if stops else ""))
    click.echo(f"tokens: {ends['tokens']['mean']:.0f} on average, {ends['tokens']['max']} at most")
    for text in warnings(result):
        click.secho(f"warning: {text}", fg="yellow")
    show_failures(rows, failures)


def show_all(results: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    table(
        ("folder", "prompts", "right"),
        ((str(folder), result["prompts"], interval(result["pass_at"]["1"])) for folder, result in results),
    )


def show_failures(rows: Sequence[Row], count: int) -> None:
    """Print some completions of each category that is not right, from different prompts."""
    for name in BAD:
        shown: dict[str, Row] = {}
        for row in rows:
            if row["category"] == name and len(shown) < count:
                shown.setdefault(row["id"], row)
        if not shown:
            continue
        click.secho(f"\n{name}", bold=True)
        for row in shown.values():
            end = row["completion"].strip()
            click.echo(
                f"  {row['id']}#{row['sample']}  wanted {shorten(str(row['answer']), 30)}; {row['detail'][:80]}"
                f" [{row['finish_reason']}]"
            )
            click.echo(f"    ... {shorten(end[-300:], 200)}" if len(end) > 200 else f"    {shorten(end, 200)}")


def shorten(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."

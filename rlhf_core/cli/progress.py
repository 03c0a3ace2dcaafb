"""What the terminal shows during a run and at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SHOWN = (
    ("reward/mean", "reward"),
    ("loss", "loss"),
    ("accuracy", "acc"),
    ("kl", "kl"),
    ("entropy", "entropy"),
    ("completion_length/mean", "length"),
    ("grad_norm", "grad"),
)


class StepPrinter:
    """A progress bar in a terminal; one line every few steps elsewhere."""

    def __init__(self, config: Any, folder: Path, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.folder, self.quiet = folder, quiet
        self.live = self.console.is_terminal and not quiet
        self.began = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.live)
        self.task = self.bar.add_task(config.trainer.name, total=None, text="")

    def __enter__(self) -> StepPrinter:
        self.bar.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, step: int, total: int | None, metrics: Mapping[str, float]) -> None:
        """Show a finished step."""
        text = "  ".join(f"{label} {metrics[key]:.3f}" for key, label in SHOWN if key in metrics)
        self.bar.update(self.task, completed=step, total=total, text=text)
        if not self.live and not self.quiet and (step <= 3 or step % 5 == 0 or step == total):
            of = f"/{total}" if total else ""
            print(f"step {step}{of}  {text}  ({time.monotonic() - self.began:.0f} s)", file=sys.stderr, flush=True)


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Print what a run achieved."""
    steps = int(summary["steps"])
    click.echo(f"\n{summary['status']}: {steps} step{'s' * (steps != 1)} in {summary['seconds']:.0f} s")
    if summary.get("stop_reason"):
        click.echo(f"stopped because: {summary['stop_reason']}")
    for before, after, label in (
        ("reward_first", "reward_last", "reward"),
        ("loss_first", "loss_last", "loss"),
        ("completion_length_first", "completion_length_last", "completion length"),
    ):
        if summary.get(before) is not None:
            if steps > 5:
                ends = f"{summary[before]:.3f} -> {summary[after]:.3f} (mean of the first and last 5 steps)"
            else:
                ends = f"{summary[after]:.3f} (mean of {steps} step{'s' * (steps != 1)})"
            click.echo(f"{label}: {ends}")
    _print_evaluation(summary)
    _print_gold(summary)
    dropped = {k: v for k, v in summary.get("dropped", {}).items() if v and k != "scores_ok"}
    if dropped:
        click.echo("counted: " + ", ".join(f"{k} {v}" for k, v in dropped.items()))
    click.echo(f"model:   {folder / 'final'}\nrun:     {folder}   (rlhf runs show {folder})")


def _print_evaluation(summary: Mapping[str, Any]) -> None:
    before, after = summary.get("evaluation_before"), summary.get("evaluation_after")
    if not before or not after:
        return
    for key in (
        "eval/reward/mean",
        "eval/loss",
        "eval/accuracy",
        "eval/gold/value",
        "eval/gold/right",
        "eval/gold/hollow",
    ):
        if key in before and key in after:
            click.echo(f"held out, {key[5:].replace('/', ' ')}: {before[key]:.3f} -> {after[key]:.3f}")


def _print_gold(summary: Mapping[str, Any]) -> None:
    for row in summary.get("examples", []):
        click.echo(f"\n  {row['prompt']}\n    before: {row['before']}\n    after:  {row['after']}")
    if "gold_win_rate" in summary:
        low, high = summary["gold_win_rate_interval"]
        click.echo(
            f"\nwin rate over the starting policy by the gold score: {summary['gold_win_rate']:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%}, {summary['gold_win_rate_prompts']} held-out prompts)"
        )

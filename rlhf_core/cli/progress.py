"""What the terminal, a log or a notebook shows during a run, and what is printed at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rlhf_core.runs.work import Advance

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.hooks import HookBus
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.launched import RankZeroLauncher

SHOWN = (
    ("reward/mean", "reward"),
    ("loss", "loss"),
    ("accuracy", "acc"),
    ("kl", "kl"),
    ("entropy", "entropy"),
    ("completion_length/mean", "length"),
    ("grad_norm", "grad"),
)
LINE_EVERY_S = 10.0
"""Seconds after which the next line is printed, where there is no bar: of a step, or of work between steps."""
NOTEBOOK_EVERY_S = 0.2


class StepPrinter:
    """A progress bar in a terminal, one line that is renewed in a notebook; one line every few steps elsewhere."""

    def __init__(self, config: Any, folder: Path, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.folder, self.quiet, self.name = folder, quiet, str(config.trainer.name)
        self.live = self.console.is_terminal and not self.console.is_jupyter and not quiet
        self.notebook = _NotebookLine() if self.console.is_jupyter and not quiet else None
        self.began = self.printed = time.monotonic()
        self.first: tuple[int, float] | None = None
        """The first step that was shown and when, for the time that is left."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.live, speed_estimate_period=float("inf"))
        self.task = self.bar.add_task(self.name, total=getattr(config.trainer, "steps", None), text="")

    def __enter__(self) -> StepPrinter:
        self.bar.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        if self.notebook is not None:
            print(text)
        elif not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, step: int, total: int | None, metrics: Mapping[str, float]) -> None:
        """Show a finished step."""
        now = time.monotonic()
        text = "  ".join(f"{label} {metrics[key]:.3f}" for key, label in SHOWN if key in metrics)
        self.bar.update(self.task, completed=step, total=total, text=text)
        left = ""
        if self.first is None:
            self.first = (step - 1, now - float(metrics.get("step", metrics.get("update", 0.0))))
        if total and step < total:
            first, since = self.first
            left = f", {_about((now - since) / (step - first) * (total - step))} left"
        of = f"/{total}" if total else ""
        line = f"step {step}{of}  {text}  ({now - self.began:.0f} s{left})"
        if self.notebook is not None:
            self.notebook.show(f"{self.name}: {line}", last=step == total)
            return
        due = step <= 3 or step % 5 == 0 or step == total or now - self.printed >= LINE_EVERY_S
        if due and not self.live and not self.quiet:
            self.printed = now
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def work(self, name: str, total: int | None) -> Generator[Advance, None, None]:
        """Show work between two steps while it lasts; where there is no bar, from its tenth second on."""
        began = shown = time.monotonic()
        done = 0
        task = self.bar.add_task(name, total=total, text="") if self.live else None

        def advance(count: int) -> None:
            nonlocal done, shown
            done = min(done + count, total) if total else done + count
            now = time.monotonic()
            if task is not None:
                self.bar.update(task, completed=done)
            elif not self.quiet and now - shown >= (NOTEBOOK_EVERY_S if self.notebook else LINE_EVERY_S):
                shown = now
                self._line(name, done, total, now - began)

        try:
            yield advance
        finally:
            if task is not None:
                self.bar.remove_task(task)

    def _line(self, name: str, done: int, total: int | None, seconds: float) -> None:
        left = f", {_about(seconds / done * (total - done))} left" if total and done else ""
        text = f"{name}: {done}{f' of {total}' if total else ''}  ({seconds:.0f} s{left})"
        if self.notebook is not None:
            self.notebook.show(text)
        else:
            print(text, file=sys.stderr, flush=True)


class _NotebookLine:
    """One line of a cell's output that is renewed; needs IPython alone, and leaves nothing behind."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.shown = 0.0

    def show(self, text: str, *, last: bool = False) -> None:
        """Show the text instead of the last one, unless that is only just there."""
        from IPython.display import display  # pyright: ignore  # there is one in every notebook

        now = time.monotonic()
        if self.handle is not None and not last and now - self.shown < NOTEBOOK_EVERY_S:
            return
        self.shown = now
        if self.handle is None:
            self.handle = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self.handle.update({"text/plain": text}, raw=True)


def launch_shown(
    plan: Plan,
    config: RunConfig,
    registry: Registry,
    hooks: HookBus,
    run_dir: Path | None,
    datasets: Any,
    *,
    resume: bool,
    quiet: bool,
    rank_0: RankZeroLauncher | None = None,
) -> tuple[Path, Mapping[str, Any]]:
    """Run a plan and show its steps; the run's folder and summary are returned."""
    from rlhf_core.runs.launch.run import launch
    from rlhf_core.runs.run_dir import RunDir, check_free, default_run_dir
    from rlhf_core.runs.work import Display

    folder = run_dir or default_run_dir(config.trainer.name)
    if not resume:
        check_free(RunDir(folder))
    printer = StepPrinter(config, folder, quiet=quiet)
    try:
        with printer:
            printer.say(f"loading model and data; the run is kept in {folder}")
            display = Display(printer.say, printer.step, printer.work)
            return folder, launch(
                plan, config, registry, hooks, folder, datasets, resume=resume, rank_0=rank_0, display=display
            )
    finally:
        for note in hooks.notes:
            printer.say(note)


def _about(seconds: float) -> str:
    """A time to wait, roughly. Example: ``about 2 min``"""
    if seconds < 99.5:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5970 else f"about {seconds / 3600:.1f} h"


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Print what a run achieved."""
    from rlhf_core.runs.metrics import compared_steps

    steps = int(summary["steps"])
    click.echo(f"\n{summary['status']}: {steps} step{'s' * (steps != 1)} in {summary['seconds']:.0f} s")
    if summary.get("stop_reason"):
        click.echo(f"stopped because: {summary['stop_reason']}")
    for name in ("reward", "loss", "completion_length"):
        if (first := summary.get(f"{name}_first")) is not None:
            count = compared_steps(steps)
            of = f"first and last {f'{count} steps, means' if count > 1 else 'step'}" if steps > 1 else "1 step"
            start = f"{first:.3f} -> " if steps > 1 else ""
            click.echo(f"{name.replace('_', ' ')}: {start}{summary[f'{name}_last']:.3f} ({of})")
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
    for name in ("reward/mean", "loss", "accuracy", "gold/value", "gold/right", "gold/hollow"):
        key = f"eval/{name}"
        if key in before and key in after:
            click.echo(f"held out, {name.replace('/', ' ')}: {before[key]:.3f} -> {after[key]:.3f}")


def _print_gold(summary: Mapping[str, Any]) -> None:
    for row in summary.get("examples", []):
        click.echo(f"\n  {row['prompt']}\n    before: {row['before']}\n    after:  {row['after']}")
    if "gold_win_rate" in summary:
        low, high = summary["gold_win_rate_interval"]
        click.echo(
            f"\nwin rate over the starting policy by the gold score: {summary['gold_win_rate']:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%}, {summary['gold_win_rate_prompts']} held-out prompts)"
        )

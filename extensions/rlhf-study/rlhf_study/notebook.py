"""What the notebooks share: commands in the kernel's process, and a study's record as a picture beside what documents
say."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from importlib.metadata import entry_points
from io import StringIO
from statistics import fmean
from typing import Any

from rlhf_core.config import Registry, RlhfError
from rlhf_study.ablation.plot import COLOURS
from rlhf_study.record import Verdict, claims, recorded
from rlhf_study.tables import markdown

Points = Sequence[tuple[float, float]]
"""A curve: (step, value)."""
Series = Mapping[str, float | Points]
"""Label -> a bar's height, or a curve."""
Panels = Mapping[str, Callable[[Mapping[str, Any]], Series]]
"""Title -> what a panel shows of one seed's figures."""

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
"""To a file beside a study, where nobody who reads a notebook is."""
OFFLINE: Mapping[str, Any] = {"seed": 0, "dataset.limit": 400, "trainer.eval_samples": 16, "trainer.max_steps": 4}
ONLINE: Mapping[str, Any] = {
    **{key: value for key, value in OFFLINE.items() if key != "trainer.max_steps"},
    **{f"trainer.{name}_batch_size": 32 for name in ("rollout", "train", "micro")},
    "trainer.steps": 3,
    "trainer.group_size": 4,
    "trainer.gold_samples": 0,
    "trainer.sampling.max_tokens": 24,
}
"""Settings of `train` with which a run takes seconds: of trainers that read rows, and of those that sample."""


def rlhf(command: str) -> Any:
    """Run a command of the toolkit in this process and print what it prints.

    Example:
        rlhf("memory plan --algo sft --model pocket")

    Returns:
        With ``--json`` what it would print, read; else None.

    Raises:
        RlhfError: the command failed; its message stands above.
    """
    (script,) = entry_points(group="console_scripts", name="rlhf")
    main, words = script.load(), shlex.split(command)
    printed = StringIO() if "--json" in words else None
    try:
        with redirect_stdout(printed) if printed else nullcontext():
            main(words)
    except SystemExit as end:
        if end.code:
            raise RlhfError(f"rlhf {words[0]} ended with code {end.code}", why="its message stands above") from None
    return json.loads(printed.getvalue()) if printed else None


def points(run: Any, metric: str) -> Points:
    """A metric of a run (:class:`rlhf_core.Run`) as a curve."""
    values = run.metrics[metric].dropna()
    return [(float(step), float(value)) for step, value in values.items()]


def curves(metric: str) -> Callable[[Mapping[str, Any]], Series]:
    """A panel of an ablation: a curve for each arm that has the metric."""
    return lambda arms: {arm: list(zip(of[metric][0], of[metric][2])) for arm, of in arms.items() if metric in of}


def last(metric: str) -> Callable[[Mapping[str, Any]], Series]:
    """A panel of an ablation: a bar for each arm that has the metric, its last value."""
    return lambda arms: {arm: of[metric][2][-1] for arm, of in arms.items() if metric in of}


def show(
    study: str, panels: Panels, *, smoke: Mapping[str, Series] | None = None, lines: Sequence[str] = (), x: str = "step"
) -> None:
    """Draw what is recorded of a study, or say that nothing is and draw the smoke result; then compare with findings.

    Args:
        study: its name in ``rlhf study list``.
        panels: what to draw of each seed's figures, as ``result.json`` has them.
        smoke: panels of the run in this notebook, drawn where nothing is recorded.
        lines: of documents, besides those that the study itself answers. Example: ``002:97``
        x: what the curves' first numbers are.
    """
    figures_S, text = _recorded(study)
    say(text)
    if figures_S:
        draw({title: [of(figures) for figures in figures_S] for title, of in panels.items()}, x)
    elif smoke:
        say("The picture is of the few steps above, which show nothing.")
        draw({title: [series] for title, series in smoke.items()}, x)
    compare(*lines, study=study)


def compare(*lines: str, study: str = "") -> None:
    """Published findings of these lines and of this study, and what is measured here."""
    modules = _modules()
    asked = re.compile(rf"rlhf study \w+ {study}\b" if study else "$^")
    found = claims(modules)
    rows = [v for v in found if v.line in lines or asked.search(v.command)]
    if study in modules and not any(asked.search(row.command) for row in found):
        config: Any = Registry().load("study", study)
        rows += [Verdict(c.line, c.says, "", "not recorded yet") for c in getattr(config(), "claims", ())]
    if rows:
        cells = [(row.line, row.says, row.here, row.verdict) for row in rows]
        say(markdown(("document:line", "published", "here", "verdict"), cells))


def draw(panels: Mapping[str, Sequence[Series]], x: str = "step") -> None:
    """One panel for each title: bars (a dot for each seed) or curves (a thin line for each seed) of means over seeds.

    Args:
        panels: title -> the series of each seed.
        x: what the curves' first numbers are.
    """
    from matplotlib import pyplot

    _, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 3.4), squeeze=False, layout="constrained")
    known = list(dict.fromkeys(label for seeds in panels.values() for series in seeds for label in series))
    for axis, (title, seeds) in zip(axes[0], panels.items()):
        labels = [label for label in known if any(label in series for series in seeds)]
        for n, label in enumerate(labels):
            colour = COLOURS[known.index(label) % len(COLOURS)]
            _mark(axis, n, label, colour, [series[label] for series in seeds if label in series])
        axis.set_title(title)
        axis.grid(alpha=0.25, axis="y")
        if axis.get_legend_handles_labels()[1]:
            axis.set_xlabel(x)
            axis.legend(frameon=False, fontsize="small")
        else:
            axis.set_xticks(range(len(labels)), labels, rotation=20 * (len(labels) > 3))


def _mark(axis: Any, n: int, label: str, colour: str, seeds: Sequence[float | Points]) -> None:
    numbers = [value for value in seeds if isinstance(value, int | float)]
    if numbers:
        axis.bar(n, fmean(numbers), color=colour, alpha=0.6)
        axis.plot([n] * len(numbers), numbers, ".", color="black")
        return
    tables = [dict(curve) for curve in seeds if not isinstance(curve, int | float)]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    means = [fmean(table[step] for table in tables) for step in steps]
    axis.plot(steps, means, color=colour, label=label, marker="." if len(steps) < 12 else None)
    for table in tables if len(tables) > 1 else ():
        axis.plot(list(table), list(table.values()), color=colour, alpha=0.3, linewidth=0.8)


def say(text: str) -> None:
    """Show Markdown: rendered in a notebook, as it is elsewhere."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        ipython.display.display(ipython.display.Markdown(text))
    else:
        print(text + "\n")


def _recorded(study: str) -> tuple[list[Mapping[str, Any]], str]:
    """Figures of each seed and the study's verdict; or none, and why."""
    modules = _modules()
    if study not in modules:
        return [], f"The study `{study}` is not installed."
    record = recorded(modules[study])
    if record.folder is None or not record.table:
        return [], f"Nothing is recorded of `{study}` yet."
    figures = json.loads((record.folder / "result.json").read_text())["seeds"]
    return list(figures.values()), LINK.sub(r"\1", f"**{record.question}**\n\n{record.verdict}")


def _modules() -> dict[str, str]:
    return {entry.name: entry.point.module for entry in Registry().entries("study")}

"""What a recipe has made: ``summary.json``, a table, and one page by `rlhf report`."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from rlhf_core.cli import say, table
from rlhf_core.config import RlhfError
from rlhf_core.data import write_json
from rlhf_plugin_recipes import commands
from rlhf_plugin_recipes.execute import Execution, Outcome

log = logging.getLogger("rlhf.recipes")


def write_summary(execution: Execution, status: str) -> dict[str, Any]:
    root = execution.store.root
    summary = {
        "recipe": execution.recipe.name,
        "file": str(execution.recipe.file),
        "status": status,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "stages": [_row(outcome) for outcome in execution.outcomes.values()],
    }
    write_json(root / "summary.json", summary)
    return summary


def print_summary(summary: dict[str, Any], root: Path, page: Path | None) -> None:
    say("")
    rows = [
        (
            row["stage"],
            row["kind"],
            row["status"],
            "" if row["seconds"] is None else f"{row['seconds']:.0f} s",
            "  ".join(f"{key} {_number(value)}" for key, value in row["figures"].items()),
        )
        for row in summary["stages"]
    ]
    table(("stage", "kind", "status", "time", "figures"), rows)
    say(f"\n{summary['status']}: {root / 'summary.json'}")
    if page is not None:
        say(f"page: {page}")


def write_page(execution: Execution) -> Path | None:
    """One page of all training stages by `rlhf report`; None where that is not installed or there is none."""
    runs = [
        str(made.folder) for name, made in execution.made.items() if execution.recipe.stage(name).kind_name == "train"
    ]
    if not runs:
        return None
    page = execution.store.root / "report.html"
    drawn = execution.store.root / ".page.json"
    is_new = any(outcome.status == "done" for outcome in execution.outcomes.values())
    if not is_new and page.is_file() and drawn.is_file() and json.loads(drawn.read_text()) == runs:
        return page
    try:
        commands.find_command(("report",))
    except RlhfError:
        return None
    try:
        commands.ask("report", *runs, "--output", str(page))
        write_json(drawn, runs)
    except Exception as error:  # the stages are done; a page that cannot be drawn must not look as if they were not
        log.warning("no page was written: %s", error)
        return None
    return page


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage.name,
        "kind": outcome.stage.kind_name,
        "status": outcome.status,
        "why": outcome.why,
        "folder": None if outcome.folder is None else str(outcome.folder),
        "seconds": outcome.seconds,
        "figures": dict(outcome.figures),
    }


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)

"""Which rows a run trained on and held out, kept beside it, so that nobody is tested on what it has learned.

A run's ``rows.json`` holds a hash of what each row asks (:func:`rlhf_core.data.held_out.content_key`), not the text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("rlhf")
FILE = "rows.json"
_PARENTS = 4
"""A model lies in ``RUN/final`` or ``RUN/checkpoints/STEP/model``."""


@dataclass(frozen=True)
class RunRows:
    """Hashes of what a run's rows ask.

    Example:
        RunRows(Path("runs/sft-1"), frozenset({"9f86d081884c7d65"}), frozenset())
    """

    run: Path
    train: frozenset[str]
    heldout: frozenset[str]


def read_rows(run: Path) -> RunRows | None:
    """What a run has kept; None where it has not read its data yet."""
    file = run / FILE
    if not file.is_file():
        return None
    rows: Mapping[str, Any] = json.loads(file.read_text())
    return RunRows(run, frozenset(rows["train"]), frozenset(rows["heldout"]))


def ancestors(model: str) -> list[RunRows]:
    """The runs that a model comes from, latest first: the one it lies in, that one's base model's, and so on.

    Args:
        model: a path, a hub id, or anything else that ``model.path`` takes.
    """
    runs: list[RunRows] = []
    seen: set[Path] = set()
    while (run := _run_of(model)) is not None and run not in seen:
        seen.add(run)
        try:
            rows = read_rows(run)
            model = str(json.loads((run / "plan.json").read_text())["config"]["model"]["path"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("what '%s' was trained on is not known: %s: %s", run, type(error).__name__, error)
            return runs
        if rows is not None:
            runs.append(rows)
    return runs


def _run_of(model: str) -> Path | None:
    path = Path(model).expanduser()
    folders = [path, *path.absolute().parents[:_PARENTS]] if path.exists() else []
    return next((f.absolute() for f in folders if (f / "plan.json").is_file()), None)


def trained_on(model: str, hashes: Collection[str]) -> tuple[int, str]:
    """How many of these rows a model has seen in training, and a warning that says so; (0, "") if none.

    Args:
        model: as in :func:`ancestors`.
        hashes: of what the rows ask.
    """
    return seen_by(ancestors(model), hashes)


def seen_by(runs: Collection[RunRows], hashes: Collection[str]) -> tuple[int, str]:
    """As :func:`trained_on`, for runs that were read."""
    rows = set(hashes)
    by_run = {r.run: len(rows & r.train) for r in runs if rows & r.train}
    count = len(rows & frozenset[str]().union(*(r.train for r in runs)))
    if not count:
        return 0, ""
    names = ", ".join(f"{run} ({n})" for run, n in by_run.items())
    return count, f"the model was trained on {count} of the {len(rows)} rows that it is tested on, by {names}"

"""What a discovery leaves for people: the best program, the conversation log, a report, a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import write_json, write_text
from rlhf_plugin_discover.archive import START, Archive, Journal, Verdict
from rlhf_plugin_discover.config import DiscoverConfig
from rlhf_plugin_discover.report import in_order, report
from rlhf_plugin_discover.tasks import Task

PLAN = "discover.json"


def plan_of(task: Task, config: DiscoverConfig) -> dict[str, Any]:
    return {
        "task": task.name,
        "isolation": isolation(task),
        "config": config.model_dump(mode="json"),
        "verifier": task.verifier.model_dump(mode="json"),
        "prompt": task.question,
    }


def write_plan(folder: Path, task: Task, argument: str, config: DiscoverConfig) -> None:
    """Task and configuration, whole or not at all; a resumed discovery reads them."""
    write_json(folder / PLAN, {**plan_of(task, config), "task": argument, "starter": task.starter})


def isolation(task: Task) -> str:
    """How programs are isolated; "" where the verifier runs none."""
    return task.verifier.conditions().get("isolation", "")


def dated_folder(name: str) -> Path:
    """Example: ``runs/discover-kissing-20260131-142501``; a suffix keeps it new."""
    stem = f"discover-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    paths = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in count(1))
    return next(path for path in paths if not path.exists())


def new_folder(path: Path) -> Path:
    if (path / PLAN).exists():
        raise ConfigError(
            f"'{path}' already holds a discovery",
            fix=f"choose another --run-dir, or go on with it: rlhf discover --resume {path}",
        )
    path.mkdir(parents=True, exist_ok=True)
    return path


def keep_best(folder: Path, verdict: Verdict) -> None:
    write_text(folder / "best.py", verdict.program)
    write_json(folder / "best.json", {"id": verdict.id, "score": verdict.score, "parts": dict(verdict.parts)})


def write_results(
    folder: Path, task: Task, config: DiscoverConfig, journal: Journal, archive: Archive, ended: str, reflection: str
) -> dict[str, Any]:
    """Archive, conversation log, report and summary; returns the summary. ``reflection``: what the model said."""
    best, start = archive.best[0], archive.verdicts[START]
    keep_best(folder, best)
    write_json(folder / "archive.json", [{"id": v.id, "score": v.score, "program": v.program} for v in archive.best])
    write_json(folder / "conversation_log.json", conversation_log(task, journal, archive))
    statuses = Counter(p.status for p in journal.proposals)
    summary = {
        "task": task.name,
        "best": best.worth if best.valid else None,
        "best_id": best.id,
        "start": start.worth if start.valid else None,
        "unit": task.settings.unit,
        "ended": ended,
        "rounds": len(journal.rounds),
        "proposals": len(journal.proposals),
        "valid": sum(v.valid for v in journal.verdicts if v.id != START),
        "replies": dict(statuses),
        "calls": journal.calls,
        "cost_usd": round(journal.spent_usd, 6),
        "input_tokens": sum(p.input_tokens for p in journal.questions),
        "output_tokens": sum(p.output_tokens for p in journal.questions),
        "seconds": round(journal.seconds, 1),
        "isolation": isolation(task),
    }
    write_text(folder / "report.md", report(summary, config, journal, archive, reflection))
    write_json(folder / "summary.json", summary)
    return summary


def conversation_log(task: Task, journal: Journal, archive: Archive) -> dict[str, Any]:
    attempts: list[Mapping[str, Any]] = []
    for proposal in in_order(journal):
        verdict = archive.verdicts.get(proposal.id)
        judged = None if verdict is None else {k: getattr(verdict, k) for k in ("score", "status", "parts", "detail")}
        shown = ("id", "parent", "messages", "reply", "status", "detail", "cost_usd")
        attempts.append({**{k: getattr(proposal, k) for k in shown}, "verdict": judged})
    return {"task": task.name, "starter": task.starter, "attempts": attempts}

"""Runs on disk, finished or not: plan, summary and metrics, for the commands that show them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.config.plan import Plan
from rlhf_core.data.held_out import ancestors, read_rows
from rlhf_core.data.jsonl import read_jsonl, read_record, record_of_run
from rlhf_core.types.errors import RunDirError, did_you_mean

TRIES = 20
"""A reader holds the lock for an instant; only a run holds it for longer."""
PAUSE_S = 0.05


@contextlib.contextmanager
def locked_run_dir(folder: Path) -> Generator[None, None, None]:
    """Hold the lock of a run's folder; without effect where the file system has none."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        for n in range(TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if n + 1 == TRIES:
                    raise RunDirError(
                        f"'{folder}' is being trained by another process",
                        why="two processes would overwrite each other's files",
                        fix=f"wait until it has ended, or end it with: touch {folder / 'stop'}",
                    ) from error
                time.sleep(PAUSE_S)
            except OSError:  # no locks on this file system
                break
        yield
    finally:
        os.close(handle)


ROOT = Path("runs")


class SeenPrompts(NamedTuple):
    """Prompts that a run holds out, and another was trained on."""

    seen: int
    heldout: int
    """All that the first holds out."""
    runs: tuple[str, ...]
    """Names of those that were trained on them, latest first."""


@dataclass(frozen=True)
class StoredRun:
    """One run directory.

    Example:
        read_run(Path("runs/grpo-20260131-142501")).status  # "completed"
    """

    path: Path
    plan: Plan
    summary: Mapping[str, Any] | None
    """What ``summary.json`` holds; None until the run is over."""
    failure: Mapping[str, Any] | None
    """Status and error, if the run ended early and could still write them."""
    metrics: tuple[Mapping[str, Any], ...]
    """Rows of ``metrics.jsonl``: steps and evaluations."""
    checkpoints: tuple[int, ...]
    """Steps with a complete checkpoint."""

    @classmethod
    def find(cls, name: str, root: Path = ROOT) -> StoredRun:
        """The run at a path, or of that name under ``root``.

        Raises:
            RunDirError: there is none; the nearest names are given.
        """
        for path in (Path(name).expanduser(), root / name):
            if (path / "plan.json").is_file():
                return read_run(path)
        folder = Path(name).expanduser()
        beside = folder.parent if folder.parent != Path() else root
        known = [plan.parent.name for plan in sorted(beside.glob("*/plan.json"))]
        near = did_you_mean(folder.name, known)
        why = "the folder holds no plan.json" if folder.is_dir() else "there is no such folder"
        raise RunDirError(f"'{name}' is not a run", why=why, fix=near or "rlhf runs list --root FOLDER")

    def seen_in_training(self, tested: StoredRun) -> SeenPrompts:
        """What this run, or one that its model comes from, was trained on of the prompts that ``tested`` holds out."""
        rows = read_rows(tested.path)
        heldout = frozenset[str]() if rows is None else rows.heldout
        trained = [run for run in ancestors(str(self.path)) if run.train & heldout]
        seen = heldout.intersection(frozenset[str]().union(*(run.train for run in trained)))
        return SeenPrompts(len(seen), len(heldout), tuple(run.run.name for run in trained))

    @property
    def status(self) -> str:
        """``completed``, ``stopped`` (by a monitor or hook), ``interrupted``, ``failed``, or ``unfinished``.

        Interrupted is a run that no process works on any more, too: it was killed. Unfinished is one that is still
        running, or of which that cannot be known: its file system has no locks.
        """
        if ended := self.summary or self.failure:
            return str(ended.get("status", "damaged"))
        return "interrupted" if self.is_live(self.path) is False else "unfinished"

    @staticmethod
    def is_live(path: Path) -> bool | None:
        """True while a process works on the run in a folder, False if none does, None where that cannot be known."""
        try:
            import fcntl

            handle = os.open(path, os.O_RDONLY)
        except (ImportError, OSError):
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(handle)

    @property
    def steps(self) -> int:
        """The last step that was logged."""
        return max((int(r["step"]) for r in self.metrics), default=0)

    def name_of(self, slot: str) -> str:
        """Name of the component in a slot, "" if there is none."""
        chosen = self.plan.config.get(slot)
        return str(chosen["name"]) if isinstance(chosen, Mapping) and "name" in chosen else ""

    @property
    def datasets(self) -> str:
        """The run's sources, as a reader would name them."""
        from rlhf_core.data.settings import unfiltered

        sources = [unfiltered(s["source"]) for s in self.plan.config.get("dataset", {}).get("sources", ())]
        return ", ".join("/".join(str(s[k]) for k in ("name", "subset", "path") if s.get(k)) for s in sources)

    def series(self) -> dict[str, list[float]]:
        """Every metric's values in the order of the steps; times and evaluations of ``eval/`` included."""
        values_by_name: dict[str, list[float]] = {}
        for row in self.metrics:
            for key, value in row.items():
                if key != "step" and isinstance(value, (int, float)):
                    values_by_name.setdefault(key, []).append(float(value))
        return values_by_name


def read_run(path: Path) -> StoredRun:
    """Read one run directory; errors as of `record_of_run`."""
    summary, failure = (read_record(f) if (f := path / f"{n}.json").is_file() else None for n in ("summary", "failure"))
    with record_of_run(path / "metrics.jsonl"):
        rows = tuple({**row, "step": int(row["step"])} for row in read_jsonl(path / "metrics.jsonl"))
    return StoredRun(path, Plan.read(path / "plan.json"), summary, failure, rows, tuple(saved_steps(path)))


def saved_steps(path: Path) -> list[int]:
    """Steps of which a run directory has a checkpoint, ascending."""
    saved = [folder.name.removeprefix("step-") for folder in (path / "checkpoints").glob("step-*")]
    return sorted(int(step) for step in saved if step.isdigit())

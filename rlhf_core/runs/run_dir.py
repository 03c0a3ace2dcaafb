"""The folder of one run."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.config.plan import Plan
from rlhf_core.data.atomic import TEMPORARY, write_json, write_text
from rlhf_core.data.jsonl import JsonlFile, begins_with
from rlhf_core.types.errors import RunDirError, disk_error, error_text

log = logging.getLogger("rlhf")
STREAMS = ("metrics", "trace", "samples")
WRITTEN = (
    "config.yaml",
    "environment.json",
    "plan.json",
    "rows.json",
    "failure.json",
    "summary.json",
    "stop",
    "checkpoints",
    "final",
    *(f"{name}.jsonl" for name in (*STREAMS, "updates")),
)


def default_run_dir(algo: str, root: Path = Path("runs")) -> Path:
    """Example: ``runs/grpo-20260131-142501``; a suffix keeps it new."""
    stem = root / f"{algo}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, n = stem, 1
    while path.exists():
        n += 1
        path = stem.with_name(f"{stem.name}-{n}")
    return path


class RunDir:
    """Paths and streams of a run.

    Files: ``plan.json``, ``config.yaml``, ``environment.json``, ``rows.json``, ``metrics.jsonl``, ``trace.jsonl``,
    ``samples.jsonl``, ``updates.jsonl`` (where a step makes several updates), ``log.txt``, ``checkpoints/``,
    ``final/``, and at the end ``summary.json`` or ``failure.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.final = path / "final"
        self.summary = path / "summary.json"
        self.failure = path / "failure.json"
        self.plan = path / "plan.json"
        self.stop = path / "stop"
        """When this file is created, the run finishes its step, saves, and stops."""
        self.streams: dict[str, JsonlFile] = {}
        """``metrics``, ``trace`` and ``samples``, once they are open, and what :meth:`stream` made."""

    def create(self, plan: Plan, environment: Mapping[str, Any]) -> None:
        """Make the folder for a new run; of two runs that try at once, one gets it."""
        check_free(self)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.plan, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            self.checkpoints.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise taken(self) from error
        except OSError as error:
            raise disk_error(self.path, error) from error
        write_text(self.path / "config.yaml", yaml.safe_dump(dict(plan.config), sort_keys=False))
        write_json(self.path / "environment.json", environment)
        write_json(self.plan, plan.to_json())

    def open_streams(self, offsets: Mapping[str, tuple[int, str]] | None) -> None:
        """Open the JSONL streams, cut to the checkpoint's ``offsets`` (None starts them empty).

        Raises:
            RunDirError: the metrics are not what they were at the checkpoint; traces and samples begin anew instead.
        """
        kept = {name: offset[0] for name, offset in (offsets or {}).items()}
        for name, offset in (offsets or {}).items():
            if not begins_with(self.path / f"{name}.jsonl", offset):
                kept[name] = self._begun_anew(name, kept[name])
        self.failure.unlink(missing_ok=True)
        self.summary.unlink(missing_ok=True)
        for name in dict.fromkeys((*STREAMS, *kept)):
            self.streams[name] = JsonlFile(self.path / f"{name}.jsonl", kept.get(name, 0))

    def stream(self, name: str) -> JsonlFile:
        """A stream that not every run has; as long as at the checkpoint that the run goes on from."""
        if name not in self.streams:
            self.streams[name] = JsonlFile(self.path / f"{name}.jsonl", 0)
        return self.streams[name]

    def _begun_anew(self, name: str, written: int) -> int:
        """Set a stream aside that lost what a checkpoint counts on; it begins anew, with no bytes."""
        file = self.path / f"{name}.jsonl"
        what = f"'{file}' no longer begins with the {written} bytes that it held at the checkpoint"
        if name == "metrics":
            raise RunDirError(
                what,
                why="it was deleted, cut or edited, and the run's summary is made of it",
                fix=f"put the file back, or start a new run from the model of a checkpoint: {self.checkpoints}",
            )
        place = file.with_suffix(".damaged.jsonl")
        if file.exists():
            file.rename(place)
        log.warning("%s: it begins anew%s", what, f"; what is there is kept as '{place}'" if place.exists() else "")
        return 0

    def offsets(self) -> dict[str, tuple[int, str]]:
        """Durable length of each stream, and hash of it."""
        return {name: stream.offset() for name, stream in self.streams.items()}

    def record_failure(self, status: str, error: BaseException) -> None:
        """Write why the run ended early, for later readers; the first reason stays."""
        if not self.failure.exists() and not self.summary.exists():
            with contextlib.suppress(RunDirError):  # a full disk has been reported already
                lines = traceback.format_exception(error)
                row = {"status": status, "error": error_text(error), "traceback": "".join(lines)}
                write_json(self.failure, row)

    def begun(self) -> bool:
        """True once an evaluation or a step has been logged, or a checkpoint saved: there is something to keep."""
        metrics = self.path / "metrics.jsonl"
        return (metrics.is_file() and metrics.stat().st_size > 0) or any(self.checkpoints.glob("step-*"))

    def discard_unused(self, first_new_folder: Path | None) -> None:
        """Remove what a new run that never began has written, up to the topmost folder that it had to create."""
        if self.begun():
            return
        with contextlib.suppress(OSError):
            if first_new_folder is None:
                for name in WRITTEN:
                    path = self.path / name
                    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
                return
            shutil.rmtree(self.path, ignore_errors=True)
            folder = self.path
            while folder != first_new_folder:
                folder = folder.parent
                folder.rmdir()  # others may use it by now

    def clean_partials(self) -> None:
        """Remove what a killed writer left half done."""
        for folder in (self.path, self.checkpoints):
            for leftover in folder.glob(f"{TEMPORARY}*"):
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()

    def close(self) -> None:
        """Close the streams."""
        for stream in self.streams.values():
            with contextlib.suppress(OSError):
                stream.close()


def first_missing(path: Path) -> Path | None:
    """The topmost folder that has to be created for ``path``; None if it is there."""
    missing = None
    while not path.exists():
        missing, path = path, path.parent
    return missing


def check_writable(path: Path) -> None:
    """Refuse a run directory that cannot be created or written, before any expensive work.

    Raises:
        RunDirError: names the folder that refuses.
    """
    missing = first_missing(path)
    parent = path if missing is None else missing.parent
    if not parent.is_dir():
        raise RunDirError(
            f"run directory '{path}' cannot be created: '{parent}' is a file", fix="choose another --run-dir"
        )
    probe = parent / f"{TEMPORARY}probe-{os.getpid()}"
    try:
        probe.write_bytes(b"\0" * 4096)
    except OSError as error:
        raise RunDirError(
            f"run directory '{path}' cannot be written: {error.strerror}",
            where=str(parent),
            fix="choose another --run-dir or change its permissions",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def check_free(run: RunDir) -> None:
    """Refuse a folder that already holds a run, holds files that a run would overwrite, or cannot be written."""
    existing = [name for name in WRITTEN if (run.path / name).exists()]
    if run.plan.exists():  # a run that begins now writes it first
        raise taken(run)
    if existing:
        raise RunDirError(
            f"'{run.path}' holds files that a run would overwrite: {', '.join(existing)}",
            fix="choose another --run-dir, or move them",
        )
    check_writable(run.path)


def taken(run: RunDir) -> RunDirError:
    """The error for a folder that another run has."""
    return RunDirError(
        f"'{run.path}' already holds a run",
        fix=f"choose another --run-dir, or resume it: rlhf train --resume {run.path}",
    )

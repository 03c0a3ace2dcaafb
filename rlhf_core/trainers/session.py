"""Everything around a training loop: streams, trackers, hooks, monitors, checkpoints, Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core import hooks as hk
from rlhf_core.errors import RlhfError, StopRun
from rlhf_core.plan import Plan
from rlhf_core.protocols import Monitor, Strategy, Tracker
from rlhf_core.runs.atomic import write_json
from rlhf_core.runs.checkpoint import CheckpointStore, rng_state, set_rng_state
from rlhf_core.runs.run_dir import RunDir

log = logging.getLogger("rlhf")


class Session:
    """The corridor of one run. Only rank 0 writes.

    Args:
        run_dir: the run's folder.
        plan: what is being run.
        strategy: ranks.
        hooks: listeners.
        resume: go on from the newest checkpoint.
    """

    def __init__(self, run_dir: RunDir, plan: Plan, strategy: Strategy, hooks: hk.HookBus, *, resume: bool = False,
                 environment: Mapping[str, Any] | None = None) -> None:
        self.dir, self.plan, self.strategy, self.hooks, self.resuming = run_dir, plan, strategy, hooks, resume
        self.environment = dict(environment or {})
        self.trackers: list[Tracker] = []
        self.monitors: list[Monitor] = []
        self.counts: Counter[str] = Counter()
        """Every dropped or errored sample by kind; goes into the summary and into checkpoints."""
        self.started = time.monotonic()
        self.interrupted = False
        self.progress: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None
        self.say: Callable[[str], None] = lambda text: log.info(text)
        self._store = CheckpointStore(run_dir.checkpoints)
        self._open = False

    @property
    def main(self) -> bool:
        """True on the rank that writes."""
        return self.strategy.rank == 0

    def open(self, keep: int) -> tuple[Path, dict[str, Any]] | None:
        """Create or reopen the run directory; return the checkpoint to go on from, if resuming."""
        self._store.keep = keep
        if self.main and not self.resuming and not self.dir.plan.exists():
            self.dir.create(self.plan, self.environment)
        self.strategy.barrier("rank 0 creating the run directory")
        if self.main:
            self.dir.clean_partials()
        found = self._store.latest() if self.resuming else None
        if self.main:
            self.dir.open_streams(found[1]["offsets"] if found else None)
        if found:
            self.counts = Counter(found[1]["counts"])
            set_rng_state(found[1]["rng"])
        self._open = True
        self.hooks.fire("rlhf_run_start", hk.RunStart(self.dir.path, self.plan.to_json()))
        return found

    def trace(self, step: int, room: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one row per prompt or event to ``trace.jsonl``."""
        for row in rows if self.main else ():
            self.dir.append("trace", {"step": step, "room": room, **row})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append completions to ``samples.jsonl``."""
        for row in rows if self.main else ():
            self.dir.append("samples", {"step": step, **row})

    def log_step(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Write one step's metrics, then tell trackers, monitors and hooks. Times are kept apart.

        Raises:
            StopRun: a monitor or hook wants the run to end.
        """
        if self.main:
            self.dir.append("metrics", {"step": step, **metrics, "time": dict(seconds)})
        for tracker in self.trackers:
            tracker.log(step, {**metrics, **{f"time/{k}": v for k, v in seconds.items()}})
        if self.main:
            self.progress(step, {**metrics, **seconds})
        event = hk.StepEnd(step, dict(metrics))
        self.hooks.fire("rlhf_step_end", event)
        for monitor in self.monitors:
            warning = monitor.observe(step, event.metrics)
            if warning:
                self.counts["monitor_warnings"] += 1
                log.warning("step %d: %s", step, warning)

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a held-out evaluation."""
        if self.main:
            self.dir.append("metrics", {"step": step, **metrics})
        for tracker in self.trackers:
            tracker.log(step, metrics)
        self.hooks.fire("rlhf_eval_end", hk.EvalEnd(step, dict(metrics)))

    def checkpoint(self, step: int, state: dict[str, Any], write_model: Callable[[Path], None]) -> None:
        """Save a checkpoint after ``step`` steps, streams included."""
        if self.main:
            full = {**state, "rng": rng_state(), "counts": dict(self.counts), "offsets": self.dir.offsets()}
            path = self._store.save(step, full, write_model)
            self.hooks.fire("rlhf_checkpoint_saved", hk.CheckpointSaved(step, path))
        self.strategy.barrier(f"rank 0 writing the checkpoint of step {step}")

    def saved(self, step: int) -> bool:
        """True if this step's checkpoint is on disk."""
        return step in self._store.steps()

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``summary.json`` and tell the hooks."""
        full = {**summary, "dropped": dict(sorted(self.counts.items())), "hook_errors": dict(self.hooks.errors)}
        if self.main:
            write_json(self.dir.summary, full)
        self.hooks.fire("rlhf_run_end", hk.RunEnd(full))
        return full

    def resume_hint(self) -> str:
        """What to type to go on."""
        return f"rlhf train --resume {self.dir.path}"

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turn the first Ctrl-C into "finish this step, save, stop"; a second one, or an early one, stops at once."""

        def on_signal(signum: int, frame: Any) -> None:
            if self.interrupted or not self.dir.begun():
                raise KeyboardInterrupt
            self.interrupted = True
            print("\nstopping after this step (Ctrl-C again stops at once)", file=sys.stderr, flush=True)

        old = None
        with contextlib.suppress(ValueError):  # not in the main thread
            old = signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        except BaseException as error:
            if self._open and self.main:
                stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
                self.dir.record_failure("interrupted" if stopped else "failed", error)
            raise
        finally:
            if old is not None:
                signal.signal(signal.SIGINT, old)
            self.close()

    def stop_requested(self) -> bool:
        """True on every rank once any rank was interrupted, or the run's ``stop`` file is there."""
        return any(self.strategy.gather_objects(self.interrupted or self.dir.stop.exists()))

    def close(self) -> None:
        """Close trackers and streams."""
        for tracker in self.trackers:
            try:
                tracker.close()
            except Exception as error:
                log.warning("tracker %s failed to close: %s", type(tracker).__name__, error)
        if self._open:
            self.dir.close()


class Interrupted(RlhfError):
    """The user stopped the run; exit code 130."""

    exit_code = 130


__all__ = ["Interrupted", "Session", "StopRun"]

"""Everything around a training loop: streams, events, metrics, checkpoints, components, Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from rlhf_core.config.plan import Plan
from rlhf_core.data.atomic import write_json
from rlhf_core.data.jsonl import append_lines, json_line, read_jsonl
from rlhf_core.distributed.rank_zero import alone
from rlhf_core.plugins import hooks as hk
from rlhf_core.plugins.component import DeadlineSettings
from rlhf_core.plugins.component_calls import Watchdog, time_limit
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.runs.checkpoint import Checkpoint, CheckpointManager
from rlhf_core.runs.component_set import ComponentSet
from rlhf_core.runs.metrics import MetricLogger
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.runs.work import Display
from rlhf_core.types.errors import RlhfError


class RunSession:
    """One run's records and the agreement of its ranks. Only rank 0 writes, but for the trace."""

    def __init__(
        self,
        run_dir: RunDir,
        plan: Plan,
        strategy: Strategy,
        hooks: hk.HookBus,
        *,
        resume_hint: str,
        resume: bool = False,
        environment: Mapping[str, Any] | None = None,
        deadlines: DeadlineSettings | None = None,
        display: Display | None = None,
    ) -> None:
        self.dir, self.plan, self.strategy, self.hooks, self.resuming = run_dir, plan, strategy, hooks, resume
        self.environment = dict(environment or {})
        self.components = ComponentSet()
        self.counts: Counter[str] = Counter()
        """Every dropped or failed sample by kind; goes into the summary and into checkpoints."""
        self.metrics = MetricLogger(run_dir, hooks, self.components, self.counts, writes=self.main)
        self.checkpoints = CheckpointManager(run_dir, strategy, hooks, self.components, self.counts)
        self.resume_hint = resume_hint
        self.watchdog = Watchdog(deadlines or DeadlineSettings(), self.resume_hint, self._record_failure)
        self.started = time.monotonic()
        self.interrupted = False
        self._interrupted_by = "Ctrl-C"
        hooks.stop_reason, hooks.reports = None, self.main
        display = display or Display()
        self.say, self.metrics.progress, self.work = display.say, display.progress, display.work
        """Shows how far long work between two steps is; see :mod:`rlhf_core.runs.work`."""
        self._open = False

    @property
    def main(self) -> bool:
        """True on the rank that writes."""
        return self.strategy.rank == 0

    def open(self, keep: int) -> Checkpoint | None:
        """Create or reopen the run directory; return the checkpoint to go on from, if resuming.

        A trainer that gets one calls ``checkpoints.restore`` once everything is built.
        """
        self.checkpoints.keep = keep
        if self.main and not self.resuming and not self.dir.plan.exists():
            self.dir.create(self.plan, self.environment)
        if self.components.rows is not None:
            self.components.rows.write()
        self.strategy.barrier("rank 0 creating the run directory")
        if self.main:
            self.dir.clean_partials()
        checkpoint = self.checkpoints.latest() if self.resuming else None
        with alone(self.strategy, "opening the run's records"):
            if self.main:
                self.dir.open_streams(checkpoint.offsets if checkpoint else None)
        if checkpoint:
            self.counts.clear()
            self.counts.update(checkpoint.state["counts"])
        else:
            self.trace(0, "plan", [{"part": part, **facts} for part, facts in self.plan.conditions.items()])
        self._open = True
        self.hooks.fire("rlhf_run_start", hk.RunStart(self.dir.path, self.plan.to_json()))
        return checkpoint

    def trace(self, step: int, stage: str, rows: Sequence[Mapping[str, Any]], turns: int = 1) -> None:
        """Append one row per prompt or event to ``trace.jsonl``: rank 0's, or, where all ranks call it together, those
        of the first ``turns`` ranks, one after the other."""
        lines = "".join(json_line({"step": step, "stage": stage, **row}) for row in rows)
        for rank in range(turns):
            if rank == self.strategy.rank:
                append_lines(self.dir.path / "trace.jsonl", lines)
            if turns > 1:
                self.strategy.barrier(f"rank {rank} writing the trace")

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append completions to ``samples.jsonl``."""
        for row in rows if self.main else ():
            self.dir.streams["samples"].append({"step": step, **row})

    def updates(self, step: int, row: Mapping[str, Any]) -> None:
        """Append one optimizer update to ``updates.jsonl``."""
        if self.main:
            self.dir.stream("updates").append({"step": step, **row})

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``summary.json``, how the run ended and how long it took included, and call the hooks."""
        reason = self.stop_reason()
        full: dict[str, Any] = {
            "status": "completed" if reason is None else "stopped",
            "stop_reason": reason,
            **summary,
            "seconds": round(time.monotonic() - self.started, 3),
            "final_model": "final",
            "dropped": dict(sorted(self.counts.items())),
            "hook_errors": dict(self.hooks.errors),
            **({"conditions": self.plan.to_json()["conditions"]} if self.plan.conditions else {}),
        }
        if self.main:
            write_json(self.dir.summary, full)
        self.hooks.fire("rlhf_run_end", hk.RunEnd(self.dir.path, full["status"], summary=full))
        return full

    def owes_evaluation(self, step: int) -> bool:
        """Whether a run that ended at a step, and was extended, has not been evaluated there before its checkpoint."""
        if step == 0 or not self.resuming or all(row["at_step"] != step for row in self.plan.extensions):
            return False
        rows = [r for r in read_jsonl(self.dir.path / "metrics.jsonl") if r["step"] == step] if self.main else []
        done = any(key.startswith("eval/") for row in rows for key in row)
        return not self.strategy.gather_objects(done)[0]

    @contextlib.contextmanager
    def guard(self) -> Generator[None, None, None]:
        """Turn the first Ctrl-C into "finish this step, save, stop"; a second one, or an early one, stops at once."""
        previous = None
        with contextlib.suppress(ValueError):  # not in the main thread
            previous = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        except BaseException as error:
            self._record_failure(error)
            raise
        finally:
            if previous is not None:
                signal.signal(signal.SIGINT, previous)
            self.close()

    def _on_interrupt(self, signum: int, frame: Any) -> None:
        if self.interrupted or not self.dir.begun():
            raise KeyboardInterrupt
        self.interrupted = True
        self._interrupted_by = "SIGTERM" if signum == signal.SIGTERM else "Ctrl-C"
        print("\nstopping after this step (Ctrl-C again stops at once)", file=sys.stderr, flush=True)

    def _record_failure(self, error: BaseException) -> None:
        if self._open and self.main:
            stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
            self.dir.record_failure("interrupted" if stopped else "failed", error)
        if isinstance(error, Interrupted):  # all ranks are here; the first one to leave ends the others
            self.close()
            self.strategy.barrier("every rank closing its components")

    def boundary(self, step: int, last: int, every: int, save: Callable[[int], None]) -> bool:
        """Between two steps: save if it is time to, and agree over ranks whether ``StopRun`` or Ctrl-C ends the run."""
        interrupted, stopping = self._agree()
        if interrupted or stopping or (step > 0 and (step == last or (every and step % every == 0))):
            with time_limit("checkpoint", "writing the checkpoint"):
                save(step)
            stopping = self.stop_reason() is not None
        if interrupted and not stopping and step < last:
            raise Interrupted(
                f"stopped by {self._interrupted_by} after step {step}; everything is saved", fix=self.resume_hint
            )
        return stopping

    def stop_reason(self) -> str | None:
        """Why a hook or monitor of any rank ends the run, the same on every rank; None if none does."""
        return next((r for r in self.strategy.gather_objects(self.hooks.stop_reason) if r is not None), None)

    def _agree(self) -> tuple[bool, bool]:
        """Whether any rank was interrupted (or the run's ``stop`` file is there), and if any raised ``StopRun``."""
        interrupted = self.interrupted or self.dir.stop.exists()
        seen = {} if self.main else self.hooks.take()
        rows = self.strategy.gather_objects((interrupted, self.hooks.stop_reason is not None, seen))
        for rank, row in enumerate(rows if self.main else ()):
            self.hooks.add(row[2], rank)
        return any(r[0] for r in rows), any(r[1] for r in rows)

    def close(self) -> None:
        """Close every component, then the streams; idempotent."""
        self.components.close()
        if self._open:
            self.dir.close()


class Interrupted(RlhfError):
    """The user stopped the run; exit code 130."""

    exit_code = 130


Event = tuple[str, tuple[Any, ...]]
"""What happened while a rollout batch was made: ``rollouts``, ``rewards``, ``count`` or ``trace``, and its values."""
Emit = Callable[..., None]
"""Takes an event: its name, then its values."""


def emit(session: RunSession, step: int, name: str, *values: Any) -> None:
    """Pass an event on to the run at once."""
    if name == "count":
        session.counts.update(*values)
    elif name == "trace":
        session.trace(step, *values)
    else:
        session.hooks.fire(f"rlhf_{name}_ready", hk.StepRollouts(step, *values))

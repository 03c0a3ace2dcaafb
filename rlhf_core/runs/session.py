"""Everything around a training loop: streams, trackers, hooks, monitors, checkpoints, Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core import hooks as hk
from rlhf_core.errors import RlhfError
from rlhf_core.plan import Plan
from rlhf_core.protocols import Monitor, Strategy, Tracker
from rlhf_core.runs.atomic import whole_folder, write_json
from rlhf_core.runs.checkpoint import CheckpointStore, rng_state, set_rng_state
from rlhf_core.runs.component_set import ComponentSet
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.runs.tree import save_tree

if TYPE_CHECKING:
    import torch

log = logging.getLogger("rlhf")
WriteModel = Callable[[Path, Mapping[str, Any]], None]
"""Fills a folder with a model whose weights are given by name."""


class RunSession:
    """The corridor of one run. Only rank 0 writes.

    Args:
        run_dir: the run's folder.
        plan: what is being run.
        strategy: ranks.
        hooks: listeners.
        resume: go on from the newest checkpoint.
    """

    def __init__(
        self,
        run_dir: RunDir,
        plan: Plan,
        strategy: Strategy,
        hooks: hk.HookBus,
        *,
        resume: bool = False,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self.dir, self.plan, self.strategy, self.hooks, self.resuming = run_dir, plan, strategy, hooks, resume
        self.environment = dict(environment or {})
        self.parts = ComponentSet()
        """Every component of the run."""
        self.trackers: list[Tracker] = []
        self.monitors: list[Monitor] = []
        self.counts: Counter[str] = Counter()
        """Every dropped or errored sample by kind; goes into the summary and into checkpoints."""
        self.started = time.monotonic()
        self.interrupted = False
        hooks.stop_reason = None
        self.total_steps: int | None = None
        """Steps that the trainer expects to make, once it knows."""
        self.progress: Callable[[int, int | None, Mapping[str, float]], None] = lambda step, total, metrics: None
        self.say: Callable[[str], None] = lambda text: log.info(text)
        self._store = CheckpointStore(run_dir.checkpoints)
        self._open = False

    @property
    def main(self) -> bool:
        """True on the rank that writes."""
        return self.strategy.rank == 0

    def open(self, keep: int) -> tuple[Path, dict[str, Any]] | None:
        """Create or reopen the run directory; return the checkpoint to go on from, if resuming.

        A trainer that gets one calls :meth:`restore` once everything is built.
        """
        self._store.keep = keep
        if self.main and not self.resuming and not self.dir.plan.exists():
            self.dir.create(self.plan, self.environment)
        self.strategy.barrier("rank 0 creating the run directory")
        if self.main:
            self.dir.clean_partials()
        found = self._store.latest(self.strategy.rank) if self.resuming else None
        if self.main:
            self.dir.open_streams(found[1]["offsets"] if found else None)
            if not found:
                self.trace(0, "plan", [{"part": part, **facts} for part, facts in self.plan.conditions.items()])
        if found:
            self.counts = Counter(found[1]["counts"])
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
        """Write one step's metrics, then tell trackers, monitors and hooks. Times are kept apart."""
        if self.main:
            self.dir.append("metrics", {"step": step, **metrics, "time": dict(seconds)})
        self._track(step, {**metrics, **{f"time/{k}": v for k, v in seconds.items()}})
        if self.main:
            self.progress(step, self.total_steps, {**metrics, **seconds})
        event = hk.StepEnd(step, dict(metrics))
        self.hooks.fire("rlhf_step_end", event)
        for monitor in self.monitors:
            part = self.parts.of(monitor)
            observe = partial(monitor.observe, step, event.metrics)
            warning = self.hooks.call(f"observe() of {part.label}", f"{part.key}:observe", observe)
            if warning:
                self.counts["monitor_warnings"] += 1
                log.warning("step %d: %s", step, warning)

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a held-out evaluation."""
        if self.main:
            self.dir.append("metrics", {"step": step, **metrics})
        self._track(step, metrics)
        self.hooks.fire("rlhf_eval_end", hk.EvalEnd(step, dict(metrics)))

    def log_more(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write what a monitor measures besides a step's metrics: a row of its own; no hook is told."""
        if self.main:
            self.dir.append("metrics", {"step": step, **metrics})
        self._track(step, metrics)

    def _track(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers:
            part = self.parts.of(tracker)
            self.hooks.call(f"log() of {part.label}", f"{part.key}:log", partial(tracker.log, step, dict(metrics)))

    def checkpoint(
        self,
        step: int,
        state: dict[str, Any],
        model: torch.nn.Module,
        write_model: WriteModel,
        mine: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a checkpoint after ``step`` steps: streams, and every rank's random numbers and component states.

        Args:
            step: steps finished.
            state: the trainer's own; with a sharded strategy that of every rank is kept.
            model: what ``write_model`` gets the weights of, gathered from all ranks.
            write_model: fills a folder with them.
            mine: what only this rank has; kept for each, beside its random numbers, in ``state["ranks"]``.
        """
        own = {
            **(mine or {}),
            "rng": rng_state(),
            "parts": self.parts.state_dict(),
            "hook_errors": dict(self.hooks.errors),
        }
        ranks, weights = self.strategy.gather_objects(own), self.strategy.full_state(model)
        with self._store.writing(step) if self.main else contextlib.nullcontext() as folder:
            if self.strategy.sharded:
                save_tree(self.strategy.gather_objects(folder)[0], f"shard-{self.strategy.rank}", state)
                self.strategy.barrier(f"every rank writing its part of the checkpoint of step {step}")
            if folder is not None:
                write_model(folder / "model", weights)
                kept = {} if self.strategy.sharded else state
                save_tree(
                    folder,
                    "state",
                    {**kept, "step": step, "ranks": ranks, "counts": dict(self.counts), "offsets": self.dir.offsets()},
                )
        if self.main:
            self.hooks.fire("rlhf_checkpoint_saved", hk.CheckpointSaved(step, self._store.path(step)))
        self.strategy.barrier(f"rank 0 writing the checkpoint of step {step}")

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with a checkpoint's component states and random numbers.

        Building a component may draw random numbers, so this comes after everything is built.

        Raises:
            RunDirError: a component keeps a state that the checkpoint does not have.
        """
        own = state["ranks"][self.strategy.rank]
        self.parts.load_state_dict(own["parts"])
        self.hooks.errors = Counter(own["hook_errors"])
        set_rng_state(own["rng"])

    def saved(self, step: int) -> bool:
        """True if this step's checkpoint is on disk."""
        return step in self._store.steps()

    def write_final(self, model: torch.nn.Module, write: WriteModel) -> None:
        """Let rank 0 write ``final/`` from the gathered weights; it appears only once it is whole.

        Raises:
            RunDirError: the disk is full; the last checkpoint is kept.
        """
        weights = self.strategy.full_state(model)
        if self.main:
            with whole_folder(self.dir.final) as folder:
                write(folder, weights)
        self.strategy.barrier("rank 0 writing the final model")

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``summary.json`` and tell the hooks."""
        full = {
            **summary,
            "dropped": dict(sorted(self.counts.items())),
            "hook_errors": dict(self.hooks.errors),
            **({"conditions": self.plan.to_json()["conditions"]} if self.plan.conditions else {}),
        }
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
            if isinstance(error, Interrupted):  # all ranks are here; whoever leaves first ends the others
                self.close()
                self.strategy.barrier("every rank closing its components")
            raise
        finally:
            if old is not None:
                signal.signal(signal.SIGINT, old)
            self.close()

    def boundary(self, step: int, last: int, every: int, save: Callable[[int], None]) -> bool:
        """Between two steps: save if it is time to, and agree over ranks whether to go on.

        Args:
            step: the step just finished; 0 before the first.
            last: the run's last step.
            every: steps between checkpoints, 0 for none but the last.
            save: writes the checkpoint of a step.

        Returns:
            True on every rank if a hook or monitor of any rank raised ``StopRun``.

        Raises:
            Interrupted: the user pressed Ctrl-C; everything is saved.
        """
        interrupted, stopping = self._agree()
        if interrupted or stopping or (step > 0 and (step == last or (every and step % every == 0))):
            save(step)
            stopping = self.stop_reason() is not None
        if interrupted and not stopping and step < last:
            raise Interrupted(
                f"stopped by Ctrl-C after step {step}; everything is saved", fix=f"go on with: {self.resume_hint()}"
            )
        return stopping

    def stop_reason(self) -> str | None:
        """Why a hook or monitor of any rank ends the run, the same on every rank; None if none does."""
        return next((r for r in self.strategy.gather_objects(self.hooks.stop_reason) if r is not None), None)

    def _agree(self) -> tuple[bool, bool]:
        """Whether any rank was interrupted (or the run's ``stop`` file is there), and if any raised ``StopRun``."""
        interrupted = self.interrupted or self.dir.stop.exists()
        rows = self.strategy.gather_objects((interrupted, self.hooks.stop_reason is not None))
        return any(r[0] for r in rows), any(r[1] for r in rows)

    def close(self) -> None:
        """Close every component, then the streams; idempotent."""
        self.parts.close()
        if self._open:
            self.dir.close()


class Interrupted(RlhfError):
    """The user stopped the run; exit code 130."""

    exit_code = 130


__all__ = ["Interrupted", "RunSession"]

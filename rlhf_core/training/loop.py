"""The loop around the steps of any trainer: start or resume, step, evaluate, save, finish."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_core.plugins.time_limit import time_limit
from rlhf_core.runs.checkpoint_manager import Checkpoint
from rlhf_core.runs.session import RunSession
from rlhf_core.types.errors import EngineUnavailable


class Stepper(Protocol):
    """A trainer whose steps :func:`run_loop` walks through."""

    def start(self, checkpoint: Checkpoint | None) -> int:
        """Build what is expensive, go on from the checkpoint if there is one; return the last step made."""
        ...

    def step(self, step: int) -> None:
        """Make one step."""
        ...

    def evaluate(self, step: int) -> object:
        """Evaluate between two steps."""
        ...

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is there."""
        ...

    def finish(self, step: int) -> Mapping[str, Any]:
        """Evaluate, write the final model and the summary."""
        ...


@dataclass(frozen=True)
class LoopSchedule:
    """How long the loop is, and what comes between its steps."""

    last_step: int
    eval_every: int
    """Steps between evaluations; 0 for none."""
    checkpoint_every: int
    """Steps between checkpoints; 0 for the last only."""
    keep_checkpoints: int


def run_loop(trainer: Stepper, session: RunSession, schedule: LoopSchedule) -> Mapping[str, Any]:
    """Train to the last step and return the summary.

    Raises:
        Interrupted: the user pressed Ctrl-C; everything is saved.
    """
    with session.guard():
        checkpoint = session.open(schedule.keep_checkpoints)
        with time_limit("build", "building the components of the run"):
            first = trainer.start(checkpoint)
        last = _walk(trainer, session, schedule, first)
        ending = time_limit("evaluation", "the last evaluation, or writing the final model")
        with ending, _saved_without_engine(trainer, session, last, unchanged=True):
            return trainer.finish(last)


def _walk(trainer: Stepper, session: RunSession, schedule: LoopSchedule, first: int) -> int:
    """Make the steps; return the last one made, which is an earlier one if a hook or monitor ends the run."""
    last, eval_every = schedule.last_step, schedule.eval_every
    session.metrics.total_steps = last
    for step in range(first, last + 1):
        session.watchdog.step = step
        if step > first:
            with time_limit("update", "the whole step"), _saved_without_engine(trainer, session, step - 1):
                trainer.step(step)
        if eval_every and step % eval_every == 0 and step < last and (step > first or session.owes_evaluation(step)):
            with (
                time_limit("evaluation", "the evaluation"),
                _saved_without_engine(trainer, session, step, unchanged=True),
            ):
                trainer.evaluate(step)  # which trains nothing
        if session.boundary(step, last, schedule.checkpoint_every, trainer.save):
            return step
    return last


@contextlib.contextmanager
def _saved_without_engine(
    trainer: Stepper, session: RunSession, step: int, *, unchanged: bool = False
) -> Iterator[None]:
    """Save the last whole step where the rollout engine is gone, and the run is unchanged since.

    All ranks write the checkpoint together, so all must have left the step at the same point; else the last one on
    disk is what there is.

    Args:
        trainer: writes the checkpoint.
        session: the run's.
        step: steps that are finished.
        unchanged: whatever is inside changes nothing of the run.

    Raises:
        EngineUnavailable: says what was saved.
    """
    try:
        yield
    except EngineUnavailable as error:
        together = error.on_every_rank or session.strategy.world_size == 1
        if not ((unchanged or error.unchanged) and together):
            raise
        with time_limit("checkpoint", "writing the checkpoint"):
            trainer.save(step)
        hint = f"{error.fix}; {session.resume_hint}" if error.fix else session.resume_hint
        what = f"{error.what}; everything up to step {step} is saved"
        raise EngineUnavailable(what, where=error.where, why=error.why, fix=hint) from error

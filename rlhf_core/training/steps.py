"""A training loop of one's own: the steps are the caller's; files, checkpoints, resuming and stopping are done here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rlhf_core.models.load import LoadedModel
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.protocols import Stateful
from rlhf_core.runs.checkpoint_manager import Checkpoint
from rlhf_core.training.config import LoopSettings
from rlhf_core.training.loop import LoopSchedule, run_loop

MakeStep = Callable[[int], Mapping[str, float]]
Evaluate = Callable[[int], Mapping[str, float]]


def run_steps(
    ctx: BuildContext,
    settings: LoopSettings,
    policy: LoadedModel,
    steps: int,
    learner: Callable[[], Stateful],
    step: MakeStep,
    evaluate: Evaluate | None = None,
) -> Mapping[str, Any]:
    """Run steps 1 to ``steps``, or what is left of them when a run is resumed, and write the model to ``final/``.

    Metrics of a step, times, checkpoints (every ``settings.checkpoint_every`` steps and at the last), Ctrl-C,
    ``StopRun`` and the summary are taken care of. All ranks call this together.

    Args:
        ctx: of the run; its session and strategy are used.
        settings: the trainer's.
        policy: loaded, not yet prepared by the strategy; its weights are those of the checkpoint when ``learner`` is
            called.
        steps: of the whole run.
        learner: makes what updates the policy, usually a ``Learner``; its state is part of every checkpoint.
        step: makes one step and returns its metrics.
        evaluate: held-out metrics before the first step, every ``settings.eval_every`` steps and at the end; names
            begin with ``eval/``. None evaluates nothing.

    Returns:
        What is in ``summary.json``.

    Raises:
        RunDirError: a checkpoint or the final model cannot be read or written.
    """
    trainer = _StepsOfCaller(ctx, settings, policy, learner, step, evaluate)
    schedule = LoopSchedule(steps, settings.eval_every, settings.checkpoint_every, settings.keep_checkpoints)
    return run_loop(trainer, ctx.session, schedule)


class _StepsOfCaller:
    """See :class:`rlhf_core.training.loop.Stepper`; arguments as of :func:`run_steps`."""

    learner: Stateful

    def __init__(
        self,
        ctx: BuildContext,
        settings: LoopSettings,
        policy: LoadedModel,
        make_learner: Callable[[], Stateful],
        make_step: MakeStep,
        measure: Evaluate | None,
    ) -> None:
        self.ctx, self.settings, self.policy, self.session = ctx, settings, policy, ctx.session
        self.make_learner, self.make_step, self.measure = make_learner, make_step, measure
        self.write = policy.save
        self.before: dict[str, float] | None = None

    def start(self, checkpoint: Checkpoint | None) -> int:
        if checkpoint is None:
            self.learner = self.make_learner()
            self.before = self.evaluate(0)
            return 0
        self.policy.load_weights(checkpoint.model)
        self.learner = self.make_learner()
        self.learner.load_state_dict(checkpoint.state["learner"])
        self.before = checkpoint.state["before"]
        self.session.checkpoints.restore(checkpoint)
        return checkpoint.step

    def step(self, step: int) -> None:
        began = time.perf_counter()
        metrics = self.make_step(step)
        self.session.metrics.log_step(step, metrics, {"step": time.perf_counter() - began})

    def evaluate(self, step: int) -> dict[str, float] | None:
        metrics = dict(self.measure(step)) if self.measure else {}
        if metrics:
            self.session.metrics.log_eval(step, metrics)
        return metrics or None

    def save(self, step: int) -> None:
        if not self.session.checkpoints.saved(step):
            state = {"learner": self.learner.state_dict(), "before": self.before}
            self.session.checkpoints.save(step, state, self.policy.model, self.write)

    def finish(self, step: int) -> Mapping[str, Any]:
        after = self.evaluate(step)
        self.session.checkpoints.write_final(self.policy.model, partial(self.write, merge=True))
        reason = self.session.stop_reason()
        return self.session.finish(
            {
                "status": "completed" if reason is None else "stopped",
                "stop_reason": reason,
                "algo": self.settings.name,
                "steps": step,
                "seed": self.ctx.seed,
                "seconds": round(time.monotonic() - self.session.started, 3),
                "evaluation_before": self.before,
                "evaluation_after": after,
                "final_model": "final",
                "reports": dict(self.ctx.report),
            }
        )

"""The loop around the steps of any trainer: start or resume, step, evaluate, save, finish; one for your own steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rlhf_core.config.run import precision_of
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.plugins.component_calls import time_limit
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.protocols import Stateful
from rlhf_core.plugins.strategy_protocols import ShardedLoading
from rlhf_core.runs.checkpoint import Checkpoint
from rlhf_core.runs.session import RunSession
from rlhf_core.training.config import LoopSettings
from rlhf_core.types.errors import EngineUnavailable


class Stepper(Protocol):
    """A trainer whose steps :func:`run_loop` walks through."""

    def start(self, checkpoint: Checkpoint | None) -> int:
        """Build what is expensive, go on from the checkpoint if there is one; return the last step made."""
        ...

    def step(self, step: int) -> None:
        """Make one step."""

    def evaluate(self, step: int) -> object:
        """Evaluate between two steps."""
        ...

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is there."""

    def finish(self, step: int) -> Mapping[str, Any]:
        """Evaluate, write the final model and the summary."""
        ...


def run_loop(
    trainer: Stepper, session: RunSession, settings: LoopSettings, last_step: int, each: int = 1
) -> Mapping[str, Any]:
    """Train to the last step and return the summary; ``each`` steps count as one of ``settings.eval_every``."""
    with session.guard():
        checkpoint = session.open(settings.keep_checkpoints)
        with time_limit("build", "building the components of the run"):
            first = trainer.start(checkpoint)
        last = _run_steps(trainer, session, settings, first, last_step, each)
        ending = time_limit("evaluation", "the last evaluation, or writing the final model")
        with ending, _saved_without_engine(trainer, session, last, unchanged=True):
            return trainer.finish(last)


def _run_steps(trainer: Stepper, session: RunSession, settings: LoopSettings, first: int, last: int, each: int) -> int:
    """Make the steps; return the last one made, which is an earlier one if a hook or monitor ends the run."""
    eval_every = settings.eval_every * each
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
        if session.boundary(step, last, settings.checkpoint_every, trainer.save):
            return step
    return last


@contextlib.contextmanager
def _saved_without_engine(
    trainer: Stepper, session: RunSession, step: int, *, unchanged: bool = False
) -> Generator[None, None, None]:
    """Save the last whole step where the engine is gone: all ranks together, so all must have left the step at the same
    point. ``unchanged``: whatever is inside changes nothing of the run.
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
    """Run steps 1 to ``steps``, or what is left when a run is resumed; write ``final/`` and return the summary.

    Metrics of a step, times, checkpoints (every ``settings.checkpoint_every`` steps and at the last), Ctrl-C,
    ``StopRun`` and the summary are taken care of. All ranks call this together.

    Args:
        policy: loaded, not yet prepared by the strategy; its weights are those of the checkpoint when ``learner`` is
            called.
        learner: makes what updates the policy, usually a ``Learner``; its state is part of every checkpoint.
        evaluate: held-out metrics before the first step, every ``settings.eval_every`` steps and at the end; names
            begin with ``eval/``. None evaluates nothing.

    Raises:
        RunDirError: a checkpoint or the final model cannot be read or written.
    """
    trainer = _StepsOfCaller(ctx, settings, policy, learner, step, evaluate)
    return run_loop(trainer, ctx.session, settings, steps)


@dataclass(eq=False)
class _StepsOfCaller:
    ctx: BuildContext
    settings: LoopSettings
    policy: LoadedModel
    make_learner: Callable[[], Stateful]
    make_step: MakeStep
    measure: Evaluate | None
    before: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self.session = self.ctx.session

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
            self.session.checkpoints.save(step, state, self.policy.model, self.policy.save)

    def finish(self, step: int) -> Mapping[str, Any]:
        getattr(self.learner, "keep_final_weights", lambda: None)()
        after = self.evaluate(step)
        self.session.checkpoints.write_final(self.policy.model, partial(self.policy.save, merge=True))
        summary = {
            "algo": self.settings.name,
            "steps": step,
            "seed": self.ctx.seed,
            "evaluation_before": self.before,
            "evaluation_after": after,
            "reports": dict(self.ctx.report),
        }
        return self.session.finish(summary)


def record_trained(ctx: BuildContext, policy: LoadedModel) -> None:
    """Say how much of the model is trained; of adapters the summary has the parameters in each kind of layer."""
    from rlhf_core.models.adapters import describe_trained, has_experts, trained_parts

    if has_experts(policy.model) or any(dict(ctx.config.model.experts).values()):
        scheduler("experts", "model.experts")()(ctx, policy)
    ctx.session.say(describe_trained(policy.model))
    if ctx.config.model.lora is not None:
        ctx.report["lora"] = trained_parts(policy.model)


def load_trained_policy(ctx: BuildContext) -> LoadedModel:
    """Load the model that the run trains, on the strategy's device; it computes in the run's ``trainer.precision``.

    With a strategy that shards it before it has weights
    (:class:`rlhf_core.plugins.strategy_protocols.ShardedLoading`) its parameters have none yet, if they lie in a local
    folder as the model has them: each rank reads its part once
    :func:`rlhf_core.training.optimizer.prepare_to_learn` has prepared the module. Until then no forward can run. The
    module's ``forward(samples, compute)`` must then return ``compute(module, samples)``, in which
    :class:`~rlhf_core.training.offline.trainer.OfflineTrainer` tries the model.

    Raises:
        ModelError: see :func:`rlhf_core.models.load.load_policy`.
    """
    policy = load_policy(ctx.config.model, weights=not isinstance(ctx.strategy, ShardedLoading))
    policy.run_on(ctx.strategy.device, precision_of(ctx.config))
    record_trained(ctx, policy)
    return policy

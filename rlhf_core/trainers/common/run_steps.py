"""A training loop of one's own: the steps are the caller's; files, checkpoints, resuming and stopping are done here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rlhf_core.context import BuildContext
from rlhf_core.models.load import LoadedModel
from rlhf_core.models.save import load_weights, write_folder
from rlhf_core.protocols import Stateful
from rlhf_core.trainers.common.config import LoopSettings


def run_steps(
    ctx: BuildContext,
    settings: LoopSettings,
    policy: LoadedModel,
    steps: int,
    learner: Callable[[], Stateful],
    step: Callable[[int], Mapping[str, float]],
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
) -> dict[str, Any]:
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
    session, save = ctx.session, partial(write_folder, policy.model, policy.tokenizer)
    with session.guard():
        checkpoint = session.open(settings.keep_checkpoints)
        if checkpoint:
            load_weights(policy.model, checkpoint[0] / "model")
        updates = learner()
        if checkpoint:
            updates.load_state_dict(checkpoint[1]["learner"])
            session.restore(checkpoint[1])
        last = first = int(checkpoint[1]["step"]) if checkpoint else 0
        session.total_steps = steps
        before = checkpoint[1]["before"] if checkpoint else _evaluated(ctx, evaluate, 0)

        def write(done: int) -> None:
            if not session.saved(done):
                state = {"learner": updates.state_dict(), "before": before}
                session.checkpoint(done, state, policy.model, save)

        for last in range(first, steps + 1):
            if last > first:
                began = time.perf_counter()
                metrics = step(last)
                session.log_step(last, metrics, {"step": time.perf_counter() - began})
                if settings.eval_every and last % settings.eval_every == 0 and last < steps:
                    _evaluated(ctx, evaluate, last)
            if session.boundary(last, steps, settings.checkpoint_every, write):
                break
        after = _evaluated(ctx, evaluate, last)
        session.write_final(policy.model, partial(save, merge=True))
        reason = session.stop_reason()
        return session.finish(
            {
                "status": "completed" if reason is None else "stopped",
                "stop_reason": reason,
                "algo": settings.name,
                "steps": last,
                "seed": ctx.seed,
                "seconds": round(time.monotonic() - session.started, 3),
                "evaluation_before": before,
                "evaluation_after": after,
                "final_model": "final",
                "reports": dict(ctx.report),
            }
        )


def _evaluated(
    ctx: BuildContext, evaluate: Callable[[int], Mapping[str, float]] | None, step: int
) -> dict[str, float] | None:
    metrics = dict(evaluate(step)) if evaluate else {}
    if metrics:
        ctx.session.log_eval(step, metrics)
    return metrics or None

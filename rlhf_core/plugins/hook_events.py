"""What hooks are called with. Every event is frozen, and a hook sees a read-only copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.types.rollouts import Rollout, Score

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


@dataclass(frozen=True)
class PlanResolved:
    """The plan as JSON values, before anything is built."""

    plan: Mapping[str, Any]
    """What ``plan.json`` will hold."""


@dataclass(frozen=True)
class Preflight:
    """Every component has checked its settings; nothing is loaded or started yet."""

    context: BuildContext
    """Configuration, registry and world size of the run."""
    force: bool
    """The user wants the run to start although it may not fit (``--force``): a listener warns instead of raising."""


@dataclass(frozen=True)
class Launch:
    """The run is about to start processes; a plugin may launch it and return the exit code."""

    plan_path: Path
    """The run's ``plan.json``."""
    nproc: int
    """How many processes are to be started."""


@dataclass(frozen=True)
class RunStart:
    """The run directory is open; the components are about to be built."""

    run_dir: Path
    """The run's folder."""
    plan: Mapping[str, Any]
    """What its ``plan.json`` holds."""


@dataclass(frozen=True)
class StepRollouts:
    """Rollouts of one step on this rank, before and after they are scored.

    ``rlhf_rollouts_ready`` comes several times a step if it samples in rounds or chunks. Rollouts that were sampled
    ahead (``trainer.rollouts.max_staleness``) are reported in the step that first trains on them, in the main thread.
    """

    step: int
    """The step, from 1."""
    rollouts: Sequence[Rollout]
    """Prompt by prompt."""
    scores: Sequence[Score] = ()
    """One per rollout, as the reward gave it; a missing one has a status. Empty before they are scored."""


@dataclass(frozen=True)
class StepMetrics:
    """Numbers of one step: what an update is about to train on, a finished step, or a held-out evaluation."""

    step: int
    """The step, from 1; of an evaluation the one before it, 0 before training."""
    metrics: Mapping[str, float]
    """By name. ``rlhf_batch_ready``: ``sequences`` (completions or rows that are trained on) and ``tokens`` (of their
    completions, that count in the loss). ``rlhf_step_end``: the step's row of ``metrics.jsonl``. ``rlhf_eval_end``:
    ``eval/...``."""


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    step: int
    """The step that it goes on from."""
    path: Path
    """Its folder."""


@dataclass(frozen=True)
class RunEnd:
    """The run is over. ``rlhf_run_end`` comes in each of its processes, where the run has ended by itself.

    ``rlhf_run_closed`` comes after it, and however the run ended, in the process that launched it, when no process of
    the run is left: its folder holds all that it will hold. It does not come for a run that left no folder.
    """

    run_dir: Path
    """The run's folder."""
    status: str
    """``completed`` or ``stopped``; of a run that did not end by itself ``interrupted`` or ``failed``."""
    error: str = ""
    """What ended it, where it did not end by itself."""
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What ``summary.json`` holds: ``steps``, last metrics, reports of components, ``hook_errors``; else empty."""

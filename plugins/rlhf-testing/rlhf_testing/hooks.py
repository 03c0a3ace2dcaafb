"""Conformance of hook plugins."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_core.config import Registry
from rlhf_core.hooks import StopRun
from rlhf_core.plugins import hooks as hk
from rlhf_core.rewards import Score
from rlhf_testing.config import light_import_problem
from rlhf_testing.report import frozen, require_of
from rlhf_testing.samples import make_context, make_rollouts

PLAN: Mapping[str, Any] = {
    "config": {"trainer": {"name": "grpo", "steps": 2}, "seed": 0, "model": {"path": "pocket"}},
    "components": [],
    "versions": {},
    "seed": 0,
    "world_size": 1,
}
"""As much of a plan as hooks look at."""


def check_hooks(plugin: object) -> None:
    """Check a hook plugin: every hook exists and none is a wrapper; each takes its event, twice, without raising and
    without changing it; importing it is light. ``rlhf_launch`` is not called.

    Args:
        plugin: what the entry point names: an object or a module.
    """
    module = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    who = f"hook plugin {getattr(plugin, '__name__', type(plugin).__name__)}"
    manager = hk.HookManager()
    try:
        names, problem = hk.register_plugin(manager, plugin, who), ""
    except Exception as error:
        names, problem = [], f"{type(error).__name__}: {error}"
    require_of(not problem, who, "every hook exists, and none is a wrapper", problem, f"hooks: {hk.HOOK_NAMES}")
    require_of(bool(names), who, "it listens to something", "no method is marked with @hookimpl")
    check_light(who, module)
    with tempfile.TemporaryDirectory() as folder:
        for name, event in [row for _ in range(2) for row in sample_events(Path(folder)).items() if row[0] in names]:
            _call(manager, who, name, event)


def check_light(who: str, module: str) -> None:
    """Every `rlhf train` imports hook modules."""
    if getattr(sys.modules.get(module), "__spec__", None) is not None:
        problem = light_import_problem(module)
        require_of(not problem, who, "importing it is light", problem, "import inside the hook")


def _call(manager: Any, who: str, name: str, event: Any) -> None:
    (impl,) = getattr(manager.hook, name).get_hookimpls()
    key = "registry" if name == "rlhf_register" else "event"
    given = event if key == "registry" else frozen(event)
    try:
        impl.function(**({key: given} if impl.argnames else {}))
    except StopRun:
        pass
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        changes = "read-only" in raised or "cannot assign to field" in raised
        rule = f"{name} leaves its event alone" if changes else f"{name} takes its event without raising"
        require_of(
            False, who, rule, raised, "copy before changing" if changes else "an event is a record: see its class"
        )


def sample_events(folder: Path) -> dict[str, Any]:
    """Hook -> what it is called with, in the order of a run; all but ``rlhf_launch``, which would start something."""
    rollouts, _ = make_rollouts(2, 2)
    scores = [Score(0.5) for _ in rollouts]
    metrics = {"reward/mean": 0.5, "kl": float("nan"), "eval/reward/mean": 0.25}
    return {
        "rlhf_register": Registry(disabled=()),
        "rlhf_plan_resolved": hk.PlanResolved(PLAN),
        "rlhf_preflight": hk.Preflight(make_context(), force=False),
        "rlhf_run_start": hk.RunStart(folder, PLAN),
        "rlhf_rollouts_ready": hk.StepRollouts(1, rollouts),
        "rlhf_rewards_ready": hk.StepRollouts(1, rollouts, scores),
        "rlhf_batch_ready": hk.StepMetrics(1, {"sequences": 4, "tokens": 14}),
        "rlhf_step_end": hk.StepMetrics(1, metrics),
        "rlhf_eval_end": hk.StepMetrics(1, metrics),
        "rlhf_checkpoint_saved": hk.CheckpointSaved(1, folder / "checkpoints" / "step-000001"),
        "rlhf_run_end": hk.RunEnd(folder, "completed", summary={"status": "completed", "steps": 1}),
        "rlhf_run_closed": hk.RunEnd(folder, "failed", "ValueError: for example"),
    }

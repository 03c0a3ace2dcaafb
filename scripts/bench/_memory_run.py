"""One training run in this process with its live tensor bytes counted, phase by phase; for :mod:`.memory_plan`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlhf_core.memory.live import LiveBytes

PHASES = {
    "update": (
        "rlhf_core.trainers.common.learner:Learner.update_sums",
        "rlhf_core.policy.forward_check:ForwardCheck.__call__",
    ),
    "rollout": ("rlhf_core.rollout.native:NativeEngine.generate_each",),
    "checkpoint": (
        "rlhf_core.runs.checkpoint_manager:CheckpointManager.save",
        "rlhf_core.runs.checkpoint_manager:CheckpointManager.write_final",
    ),
}
"""Phase -> methods that are it; what is before, between and after them (evaluations, say) counts as ``other``."""


class Phases:
    """The peak of each phase."""

    def __init__(self, live: LiveBytes) -> None:
        self.live, self.peaks, self.stack = live, dict.fromkeys(["other", *PHASES], 0), ["other"]

    def _note(self) -> None:
        self.peaks[self.stack[-1]] = max(self.peaks[self.stack[-1]], self.live.peak)
        self.live.begin()

    def wrapped(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, as a part of a phase."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            self._note()
            self.stack.append(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._note()
                self.stack.pop()

        return inside

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch every phase's methods."""
        import importlib
        from contextlib import ExitStack

        with ExitStack() as stack:
            for phase, places in PHASES.items():
                for place in places:
                    module, _, name = place.partition(":")
                    owner, method = name.split(".")
                    cls = getattr(importlib.import_module(module), owner)
                    stack.enter_context(patch.object(cls, method, self.wrapped(phase, getattr(cls, method))))
            yield
            self._note()


def plan_and_measure(names: Mapping[str, str], settings: Sequence[str], ranks: int = 1) -> dict[str, dict[str, int]]:
    """Planned and measured bytes of each phase of a run, of the rank that has most.

    Args:
        names: short options, such as ``{"algo": "grpo", "model": "pocket"}``.
        settings: as ``--set`` takes them.
        ranks: processes, on gloo.
    """
    from rlhf_core.cli.options import open_plugins, resolve_options
    from rlhf_core.context import BuildContext
    from rlhf_core.launch.process import environment
    from rlhf_core.launch.run import plan_run, preflight
    from rlhf_core.memory.footprint import footprint
    from rlhf_core.memory.plan import Placement, plan_for
    from rlhf_core.runs.run_dir import RunDir

    registry, hooks = open_plugins()
    config = resolve_options(registry, (), settings, names)
    run_plan = plan_run(registry, hooks, config, ranks)
    preflight(registry, config, ranks)
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, world_size=ranks)
    place = Placement("single") if ranks == 1 else Placement("ddp", ranks)
    planned = plan_for(footprint(ctx, on_cpu=True), place, on_cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "run")
        run.create(run_plan, environment())
        if ranks == 1:
            peaks = measure(run.path)
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
            subprocess.run([*command, "-m", "scripts.bench._memory_run", str(run.path)], check=True)
            every = [json.loads((run.path / f"peaks-{rank}.json").read_text()) for rank in range(ranks)]
            peaks = {phase: max(rank[phase] for rank in every) for phase in every[0]}
    return {"plan": {name: phase.total for name, phase in planned.phases.items()}, "measured": peaks}


def measure(run_dir: Path) -> dict[str, int]:
    """Live tensor bytes at the peak of each phase of a planned run on this rank."""
    from rlhf_core.hooks import load_hooks
    from rlhf_core.launch.process import run_plan
    from rlhf_core.plan import Plan, reload
    from rlhf_core.registry import Registry

    registry, hooks = Registry(), load_hooks()
    hooks.fire("rlhf_register", registry)
    plan = Plan.read(run_dir / "plan.json")
    config = reload(registry, plan)
    registry.freeze()
    with LiveBytes() as live:
        phases = Phases(live)
        with phases.active():
            run_plan(plan, config, registry, hooks, run_dir, resume=False)
    return phases.peaks


def main() -> None:
    """One rank of a run that is there, or plan and measurement of a run: JSON on the last line."""
    if len(sys.argv) == 2:
        peaks = measure(Path(sys.argv[1]))
        Path(sys.argv[1], f"peaks-{os.environ['RANK']}.json").write_text(json.dumps(peaks))
        return
    print(json.dumps(plan_and_measure(json.loads(sys.argv[1]), sys.argv[3:], int(sys.argv[2]))))


if __name__ == "__main__":
    main()

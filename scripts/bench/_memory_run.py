"""One training run in this process with its memory counted, phase by phase; for :mod:`.memory_plan`."""

from __future__ import annotations

import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scripts.bench._memory_truth import CardMemory, LiveTensors

PHASES = {
    "update": (
        "rlhf_core.training.learner:Learner.update_sums",
        "rlhf_core.training.forward_check:ForwardCheck.__call__",
    ),
    "rollout": ("rlhf_plugin_native.engine:NativeEngine.generate_each",),
    "checkpoint": (
        "rlhf_core.runs.checkpoint:CheckpointManager.save",
        "rlhf_core.runs.checkpoint:CheckpointManager.write_final",
    ),
}
"""Phase -> methods that are it; what is before, between and after them (evaluations, say) counts as ``other``."""


class Phases:
    def __init__(self, truth: CardMemory | LiveTensors) -> None:
        self.truth, self.stack = truth, ["other"]
        self.peaks: dict[str, dict[str, int]] = {}

    def _note(self) -> None:
        for kind, peak in self.truth.peaks().items():
            of_phases = self.peaks.setdefault(kind, dict.fromkeys(["other", *PHASES], 0))
            of_phases[self.stack[-1]] = max(of_phases[self.stack[-1]], peak)
        self.truth.begin()

    def wrapped(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
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
    def active(self) -> Generator[None, None, None]:
        import importlib
        from contextlib import ExitStack

        with ExitStack() as stack:
            for phase, functions in PHASES.items():
                for function in functions:
                    module, _, name = function.partition(":")
                    owner, method = name.split(".")
                    cls = getattr(importlib.import_module(module), owner)
                    stack.enter_context(patch.object(cls, method, self.wrapped(phase, getattr(cls, method))))
            yield
            self._note()


IMPORTED = (
    "accelerate",
    "peft",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "transformers.models.llama.modeling_llama",
    "rlhf_core.runs.launch.process",
    "rlhf_plugin_preflight.memory.footprint",
    "rlhf_core.models.save",
    "rlhf_core.runs.session",
    "rlhf_core.rl.trainer",
    "rlhf_core.training.offline.trainer",
)
"""What takes most of a short run's time to import."""


@cache
def import_everything() -> None:
    import importlib

    import torch

    from rlhf_core.models.config import ModelConfig
    from rlhf_plugin_preflight.memory.unknown import without_values
    from rlhf_plugin_preflight.memory.weightless import meta_model

    torch.set_num_threads(1)  # a process that has begun to use threads cannot be forked
    for name in IMPORTED:
        importlib.import_module(name)
    with without_values():
        meta_model(ModelConfig(path="pocket"))


def plan_and_measure(
    names: Mapping[str, str], settings: Sequence[str], ranks: int = 1, device: str = "cpu"
) -> dict[str, dict[str, int]]:
    """Planned and measured bytes of each phase of a run, on a card also reserved ones, of the rank that has most. On a
    CPU every process is forked from this one, which has imported what they need; with CUDA each starts anew."""
    with tempfile.TemporaryDirectory() as folder:
        planned = plan(names, settings, ranks, Path(folder), device)
        port = str(_free_port())
        in_processes([partial(_measure_rank, Path(folder), rank, ranks, port, device) for rank in range(ranks)], device)
        every = [json.loads(Path(folder, f"peaks-{rank}.json").read_text()) for rank in range(ranks)]
    return {"plan": planned, **of_all_ranks(every)}


def of_all_ranks(every: Sequence[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    return {kind: {phase: max(rank[kind][phase] for rank in every) for phase in every[0][kind]} for kind in every[0]}


def plan(
    names: Mapping[str, str], settings: Sequence[str], ranks: int, folder: Path, device: str = "cpu"
) -> dict[str, int]:
    """Planned bytes of each phase of a run, which is created in a folder; arguments as :func:`plan_and_measure`."""
    if device == "cpu":
        import_everything()
    in_processes([partial(_plan, names, settings, ranks, folder, device)], device)
    return json.loads((folder / "planned.json").read_text())


def _plan(names: Mapping[str, str], settings: Sequence[str], ranks: int, folder: Path, device: str) -> None:
    from rlhf_core.cli.options import open_plugins, resolve_options
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.runs.launch.process import environment
    from rlhf_core.runs.launch.run import plan_run, preflight
    from rlhf_core.runs.run_dir import RunDir
    from rlhf_plugin_preflight.memory.footprint import footprint
    from rlhf_plugin_preflight.memory.plan import placement_of, plan_for

    registry, hooks = open_plugins()
    config = resolve_options(registry, (), settings, names).config
    run_plan = plan_run(registry, hooks, config, ranks)
    preflight(registry, config, ranks)
    ctx = BuildContext(config=config, registry=registry, seed=config.seed, world_size=ranks)
    on_cpu = device == "cpu"
    planned = plan_for(footprint(ctx, on_cpu=on_cpu), placement_of(ctx), on_cpu=on_cpu)
    RunDir(folder / "run").create(run_plan, environment())
    Path(folder, "planned.json").write_text(json.dumps({name: phase.total for name, phase in planned.phases.items()}))


def _measure_rank(folder: Path, rank: int, ranks: int, port: str, device: str) -> None:
    if ranks > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    truth = LiveTensors() if device == "cpu" else CardMemory(rank)
    Path(folder, f"peaks-{rank}.json").write_text(json.dumps(measure(folder / "run", truth)))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def in_processes(works: Sequence[Callable[[], None]], device: str = "cpu") -> None:
    """Run each in a process of its own, and wait; where one fails the others are ended.

    A forked process cannot use CUDA where its parent has asked for it, be it only whether it is there.
    """
    context: Any = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
    processes = [context.Process(target=work) for work in works]
    for process in processes:
        process.start()
    try:
        while (alive := [p.sentinel for p in processes if p.is_alive()]) and not any(p.exitcode for p in processes):
            multiprocessing.connection.wait(alive)
    finally:
        for process in processes:
            process.terminate()
            process.join()
    if failed := [n for n, p in enumerate(processes) if p.exitcode]:
        raise RuntimeError(f"process {failed[0]} of {len(works)} failed; its output is above")


def measure(run_dir: Path, truth: CardMemory | LiveTensors) -> dict[str, dict[str, int]]:
    from rlhf_core.config.plan import Plan, reload
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.runs.launch.process import run_plan

    registry, hooks = Registry(), load_hooks()
    hooks.fire("rlhf_register", registry)
    plan = Plan.read(run_dir / "plan.json")
    config = reload(registry, plan)
    registry.freeze()
    phases = Phases(truth)
    with truth.counting(), phases.active():
        run_plan(plan, config, registry, hooks, run_dir, resume=False)
    return phases.peaks

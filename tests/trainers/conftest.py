"""Small runs in this process, with listeners and components that a test brings along."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.config.load import merge_settings, validate
from rlhf_core.config.plan import Plan, reload
from rlhf_core.hooks import StopRun, hookimpl
from rlhf_core.plugins.hooks import HookBus, HookManager
from rlhf_core.plugins.registry import Registry
from rlhf_core.rewards import Sample, Score
from rlhf_core.runs.launch.run import plan_run, preflight, run_plan
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig
from tests.resume.runs import train as train_here

ONLINE: dict[str, Any] = {
    "trainer": {"name": "grpo", "steps": 3, "rollout_batch_size": 8, "group_size": 4, "eval_samples": 4},
    "reward": {"name": "numbers"},
    "dataset": {"name": "pocket", "subset": "arithmetic", "limit": 64},
}
GROUPS = {
    **ONLINE,
    "trainer": {**ONLINE["trainer"], "eval_samples": 2, "checkpoint_every": 1, "keep_checkpoints": 9},
}
"""For what decides which groups a batch holds."""
OFFLINE = {
    "trainer": {"name": "sft", "max_steps": 3, "batch_size": 4, "micro_batch_size": 4, "eval_samples": 4},
    "dataset": {"limit": 64},
}


class NumbersConfig(ComponentConfig):
    """The verifier ``numeric``, without a worker process, whose start takes a third of such a run."""

    name: str = "numbers"
    component: ClassVar[str] = f"{__name__}:Numbers"


class Numbers:
    def __init__(self, config: NumbersConfig, ctx: BuildContext) -> None:
        self.verifier: Any = NumericVerifierConfig().build(ctx)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [self.verifier.verify(sample) for sample in samples]


class Train:
    """Runs in ``folder``; ``run`` is its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bus = folder, HookBus(HookManager())

    def __call__(
        self,
        base: Mapping[str, Any],
        *listeners: object,
        change: Mapping[str, Any] | None = None,
        components: Mapping[tuple[str, str], str] | None = None,
        strict: bool = False,
        resume: bool = False,
        run: str = "run",
    ) -> Mapping[str, Any]:
        """Train; ``components`` maps (kind, name) to ``module:Config``. Returns the summary."""
        registry, self.bus = Registry(disabled=()), HookBus(HookManager(), strict)
        for n, listener in enumerate(listeners):
            self.bus.manager.register(listener, name=f"listener-{n}")
        registry.add("reward", "numbers", f"{__name__}:NumbersConfig", distribution="pytest")
        for (kind, name), value in (components or {}).items():
            registry.add(kind, name, value, distribution="pytest")
        if resume:
            plan = Plan.read(self.folder / run / "plan.json")
            config = reload(registry, plan)
        else:
            config = validate(registry, merge_settings({"threads": 1, **base}, change or {}))
            plan = plan_run(registry, self.bus, config, 1)
            preflight(registry, config, 1)
        return run_plan(plan, config, registry, self.bus, self.folder / run, resume=resume)


def with_trainer(base: Mapping[str, Any], **trainer: Any) -> dict[str, Any]:
    """The settings with other ones of the trainer."""
    return {**base, "trainer": {**base["trainer"], **trainer}}


def one_and_two_processes(folder: Path, *trainer: str) -> list[Path]:
    """Folders of the same run made by one process and by two; ``trainer`` are its settings, ``key=value``."""
    settings = [
        "threads=1",
        "dataset.limit=64",
        "reward.workers=1",
        *(f"trainer.{s}" for s in ("group_size=4", "eval_samples=2", "optimizer.eps=1e-3", *trainer)),
    ]
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
    words += [word for setting in settings for word in ("--set", setting)]
    assert train_here(*words, "--run-dir", str(folder / "1")) == 0
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words, "--nproc", "2"]
    subprocess.run([*command, "--run-dir", str(folder / "2")], check=True, timeout=250, capture_output=True)
    return [folder / "1", folder / "2"]


def largest_difference(a: Path, b: Path) -> float:
    """Between the final weights of two runs."""
    from safetensors.torch import load_file

    one, two = (load_file(run / "final" / "model.safetensors") for run in (a, b))
    return max(float((one[name] - two[name]).abs().max()) for name in one)


class StopsAt:
    """Ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def rlhf_step_end(self, event: Any) -> None:
        if event.step == self.step:
            raise StopRun("pause")


@pytest.fixture
def train(tmp_path: Path) -> Train:
    return Train(tmp_path)

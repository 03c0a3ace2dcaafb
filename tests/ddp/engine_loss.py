"""Runs on two ranks of which one has no engine left at some point, one run after the other.

Run by torchrun; each rank writes how each run ended. Imported, it says which runs there are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.config.load import merge_settings, validate
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.plugins.hooks import HookBus, HookManager
from rlhf_core.plugins.registry import Registry
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import EngineUnavailable, Rollout, RolloutRequest, SamplingParams
from rlhf_core.runs.launch.process_end import hard_exit
from rlhf_core.runs.launch.run import plan_run, run_plan
from rlhf_core.types.errors import RlhfError
from rlhf_plugin_native.engine import NativeEngine

GONE: dict[str, int] = {}
"""Of this process: in which ``call`` or ``update`` its engine is gone, counted from 1."""


class Failing:
    """The native engine, until it is gone."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine, self.calls, self.updates = engine, 0, 0

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        self.calls += 1
        self.check(self.calls, "call")
        return self.engine.generate(requests, sampling, policy_version)

    def check(self, count: int, name: str) -> None:
        if count == GONE.get(name):
            raise EngineUnavailable("no server is left", why="they ended", fix="start one")


class Updated(Failing):
    """It keeps weights of its own, it says."""

    def update_weights(self, version: int, tensors: Any) -> None:
        self.updates += 1
        self.check(self.updates, "update")


class InFlight(Updated):
    """And takes them while it samples."""

    in_flight = True


class FailingConfig(ComponentConfig):
    """Its kind is how it takes weights."""

    name: str = "failing"
    kind: str = "Failing"

    def build(self, ctx: BuildContext) -> Failing:
        return globals()[self.kind](NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context))


class AskingConfig(ComponentConfig):
    """A benchmark that samples once."""

    name: str = "asking"

    def build(self, ctx: BuildContext) -> AskingConfig:
        return self

    def evaluate(self, engine: Any, version: int) -> dict[str, float]:
        engine.generate([RolloutRequest("p", (5, 6), 1, 0)], SamplingParams(max_tokens=2), version)
        return {"asked": 1.0}


class LettersConfig(ComponentConfig):
    """A reward in which hardly two completions are alike."""

    name: str = "letters"

    def build(self, ctx: BuildContext) -> LettersConfig:
        return self

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(float(sum(map(ord, sample.completion)) % 7)) for sample in samples]


class Case(NamedTuple):
    """A run."""

    gone: dict[str, int]
    saved: int | None
    """The step that is saved; None if nothing is."""
    settings: dict[str, Any]
    rank: int = 1
    """The one whose engine is gone."""


def grpo(kind: str = "Failing", **trainer: Any) -> dict[str, Any]:
    """Four steps on the pocket model."""
    base = {"name": "grpo", "steps": 4, "rollout_batch_size": 8, "group_size": 4, "micro_batch_size": 4}
    base |= {"checkpoint_every": 0, "gold_samples": 0, "eval_samples": 0, "sampling": {"max_tokens": 8}}
    return {
        "trainer": {**base, **trainer},
        "rollout": {"name": "failing", "kind": kind},
        "reward": {"name": "letters"},
        "dataset": {"name": "pocket", "subset": "arithmetic", "limit": 32},
    }


def iterative(kind: str = "Failing", **trainer: Any) -> dict[str, Any]:
    """Three iterations of a rollout batch and an update each."""
    own = {"name": "iterative_dpo", "rollout_batches": 1, "updates": 1, "pair_batch_size": 4}
    return grpo(kind, **{**own, "steps": 3, "eval_every": 0, **trainer})


def sft() -> dict[str, Any]:
    """Three updates, with completions of held-out prompts before the first and after the second."""
    own = {"max_steps": 3, "batch_size": 4, "micro_batch_size": 4, "checkpoint_every": 0, "eval_samples": 0}
    return {**grpo(), "trainer": {"name": "sft", **own, "eval_every": 2, "sample_prompts": 4}}


AHEAD = {"rollouts": {"max_staleness": 1}}
CASES = {
    "sampling": Case({"call": 3}, 2, grpo()),
    "dynamic sampling": Case({"call": 3}, 2, grpo(dynamic_sampling={"max_rounds": 1})),
    "evaluation": Case({"call": 4}, 2, grpo(eval_samples=4, eval_every=2)),
    "last evaluation": Case({"call": 6}, 4, grpo(eval_samples=4)),
    "weight sync": Case({"update": 3}, 2, grpo("Updated")),
    "benchmark": Case({"call": 3}, 1, {**grpo(eval_every=1), "benchmarks": [{"name": "asking"}]}, rank=0),
    "sampled ahead": Case({"call": 3}, None, grpo(**AHEAD)),
    "evaluation beside what is sampled ahead": Case({"call": 3}, None, grpo(**AHEAD, eval_samples=4, eval_every=1)),
    "dynamic sampling ahead": Case({"call": 3}, None, grpo(**AHEAD, dynamic_sampling={"max_rounds": 1})),
    "weight sync ahead": Case({"update": 3}, None, grpo("Updated", **AHEAD)),
    "weight sync ahead of dynamic sampling": Case(
        {"update": 2}, None, grpo("Updated", **AHEAD, dynamic_sampling={"max_rounds": 1})
    ),
    "weights in flight": Case({"update": 3}, None, grpo("InFlight", **AHEAD)),
    "iterative_dpo": Case({"call": 2}, 2, iterative()),
    "iterative_dpo, weight sync": Case({"update": 3}, 4, iterative("Updated")),
    "iterative_dpo, evaluation": Case({"call": 3}, 2, iterative(eval_samples=4, eval_every=1)),
    "held-out samples": Case({"call": 2}, 2, sft()),
}
DEADLINE_S = 60
"""Of each collective; nobody is to wait for it."""


def main(folder: Path) -> None:
    """Every run; what this rank has seen of them goes into ``rank-N.json``."""
    rank, seen = int(os.environ["RANK"]), dict[str, Any]()
    AcceleratedStrategy.close = stay_joined
    for name, case in CASES.items():
        GONE.clear()
        GONE.update(case.gone if rank == case.rank else {})
        began, error = time.monotonic(), ""
        try:
            run(case, folder / name)
        except RlhfError as raised:
            error = f"{type(raised).__name__}: {raised}"
        seen[name] = {"error": error, "seconds": time.monotonic() - began}
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen))


def stay_joined(strategy: AcceleratedStrategy) -> None:
    """The next run has the same process group."""
    if strategy.peers is not None:
        strategy.peers.close()


def run(case: Case, folder: Path) -> None:
    """Train."""
    registry, bus = Registry(disabled=()), HookBus(HookManager())
    registry.add("rollout", "failing", f"{__name__}:FailingConfig", distribution="pytest")
    registry.add("reward", "letters", f"{__name__}:LettersConfig", distribution="pytest")
    registry.add("benchmark", "asking", f"{__name__}:AskingConfig", distribution="pytest")
    config = validate(registry, merge_settings({"threads": 1, "strategy": {"timeout_s": DEADLINE_S}}, case.settings))
    run_plan(plan_run(registry, bus, config, 2), config, registry, bus, folder, resume=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    hard_exit(0)

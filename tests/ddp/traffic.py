"""Updates on one rollout batch, with what each rank is sent; rank 0 writes what it found.

Run by torchrun on two ranks; imported, it makes the same updates in one process.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pluggy
import torch
from safetensors.torch import save_file

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.group import RankZero
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.plugins.contracts import CheckedAdvantage
from rlhf_core.plugins.hooks import HookBus, Specs
from rlhf_core.rl.advantages import AdvantageStep, ForwardResults
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.sources import CollectorSettings
from rlhf_core.rl.update import Groups, UpdateStep
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import balance, flops
from rlhf_core.training.policy_module import PolicyMicroBatcher, PolicyModule
from rlhf_core.training.rollout_batch import RolloutGroup, TrainingSample, batch_of
from rlhf_core.training.weight_sync import DriftCheck
from rlhf_core.types.errors import ComponentError, OtherRankFailed
from rlhf_core.types.rollouts import Advantages, Prompt, PromptGroup, Rollout, SamplingParams, Score
from rlhf_plugin_grpo.advantage import GroupNorm, OptimalBaseline
from rlhf_plugin_grpo.advantage_config import GroupNormConfig, OptimalBaselineConfig
from rlhf_plugin_grpo.loss import GrpoClip
from rlhf_plugin_schedule.dynamic_collector import DynamicCollector
from rlhf_plugin_schedule.own_groups import estimate_own_groups
from rlhf_testing.samples import make_rollouts

SIZE, COUNT = 2, 8
BATCHES = {"rollout_batch_size": SIZE * COUNT, "group_size": SIZE, "optimizer": {"eps": 1e-3}, "drift_check": "warn"}
SEVERAL = {**BATCHES, "train_batch_size": SIZE * 4, "epochs_per_rollout_batch": 2}
TOKENS = {**BATCHES, "micro_batch_tokens": 200}
CASES: dict[str, tuple[dict[str, Any], int, frozenset[int]]] = {
    "several batches": (SEVERAL, 3, frozenset()),
    "several batches by tokens": ({**SEVERAL, "micro_batch_tokens": 400}, 4, frozenset({5})),
    "by tokens": (TOKENS, 4, frozenset({0, 6})),
    "one rank sampled everything": (TOKENS, 8, frozenset()),
    "one group is left": (SEVERAL, 4, frozenset(range(1, 8))),
    "nothing is left": (SEVERAL, 4, frozenset(range(8))),
    "each its own": (BATCHES, 3, frozenset()),
}
"""Settings, how many of the groups rank 0 has sampled, and those without a gradient."""
FATAL = -77.0
"""A score at which the estimator fails."""
FACTS = 400
"""Bytes of an exchange that are no samples: costs, counts, metrics."""


def groups(constant: frozenset[int]) -> Groups:
    """Eight groups of different lengths."""
    rng = np.random.default_rng(7)
    rows: Groups = []
    for n in range(COUNT):
        prompt = tuple(int(t) for t in rng.integers(6, 700, int(rng.integers(4, 20))))
        group: list[TrainingSample] = []
        for i in range(SIZE):
            length = int(rng.integers(20, 60))
            ids = tuple(int(t) for t in rng.integers(6, 700, length))
            old = rng.normal(-3, 1, length).astype(np.float32)
            advantage = 0.0 if n in constant else float(rng.normal())
            advantages_T = np.full(length, advantage, np.float32)
            group.append(TrainingSample(f"{n}#{i}", prompt, ids, np.ones(length, bool), advantages_T, old, old, old))
        rows.append(group)
    return rows


class Counted(AcceleratedStrategy):
    """Counts the bytes of values that other ranks send to this one."""

    received = 0
    exchanges = 0

    def gather_objects(self, value: Any) -> list[Any]:
        return self._counted(super().gather_objects(value))

    def exchange_objects(self, outgoing: Sequence[Any]) -> list[Any]:
        return self._counted(super().exchange_objects(outgoing))

    def _counted(self, values: list[Any]) -> list[Any]:
        self.received += sum(len(pickle.dumps(value)) for rank, value in enumerate(values) if rank != self.rank)
        self.exchanges += 1
        return values


class Watched(Learner):
    """Remembers which samples each update ran."""

    ran: list[list[str]]

    def update_sums(self, samples: Sequence[Any], *args: Any, **options: Any) -> Any:
        self.ran.append([s.name for s in samples])
        return super().update_sums(samples, *args, **options)


def update(strategy: Any, case: str) -> dict[str, Any]:
    """The weights after the case's updates, its metrics, and which samples this rank ran."""
    settings, split, constant = CASES[case]
    config = OnlineTrainerConfig(name="t", **settings).micro_batches(strategy.world_size)
    module = PolicyModule(load_policy(ModelConfig(path="pocket")).model, 1.0)
    cut = PolicyMicroBatcher(module, 2, config.micro_batch_tokens, 64)
    learner = Watched(strategy.prepare(module), GrpoClip(0.2, 0.2), strategy, config, 100, micro_batcher=cut)
    learner.ran = []
    manager = pluggy.PluginManager("rlhf")
    manager.add_hookspecs(Specs)
    session: Any = SimpleNamespace(
        hooks=HookBus(manager), counts=Counter[str](), updates=lambda step, row: None, started=0.0
    )
    step = UpdateStep(learner, module, cut, strategy, config, session, 1, DriftCheck("off", session.counts))
    rows, rank = groups(constant), strategy.rank
    share = rows if strategy.world_size == 1 else (rows[:split] if rank == 0 else rows[split:])
    metrics = step(1, share, 0)
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    strategy.release(strategy.unwrap(learner.module))
    return {"weights": weights, "metrics": metrics, "ran": learner.ran}


def shares(case: str, world_size: int) -> list[list[list[str]]]:
    """Of each update and rank the samples, decided by whoever has all of them: what gathering them gave."""
    settings, split, constant = CASES[case]
    config = OnlineTrainerConfig(name="t", **settings)
    rows = [[] if n in constant else group for n, group in enumerate(groups(constant))]
    updates: list[list[list[str]]] = []
    epochs, budget = config.epochs_per_rollout_batch, config.micro_batch_tokens
    for epoch in range(epochs):
        order = np.arange(COUNT)
        if config.updates_per_step > epochs:
            order = np.random.default_rng([1, 1, epoch]).permutation(COUNT)
        for places in np.array_split(order, config.updates_per_step // epochs):
            batch = [rows[n] for n in np.sort(places)]
            parts = [part.tolist() for part in np.array_split(np.arange(len(batch)), world_size)]
            if budget is not None:
                parts = balance([flops(group, True, 64) for group in batch], world_size)
            elif config.updates_per_step == 1:
                parts = [list(range(split)), list(range(split, COUNT))]
            updates.append([[s.name for n in part for s in batch[n]] for part in parts])
    return updates


def moved(case: str, rank: int) -> tuple[int, int]:
    """Bytes of the other rank's samples: of those that this rank has to run, and of all.

    A rank that has nothing to run in an update runs one of the other's instead, without effect.
    """
    _, split, constant = CASES[case]
    others = {s.name: s for n, g in enumerate(groups(constant)) if (n < split) is not (rank == 0) for s in g}
    wanted: Counter[str] = Counter()
    for update in shares(case, 2):
        wanted |= Counter(update[rank])
        wanted += Counter([] if update[rank] else update[1 - rank][:1])
    size = {name: len(pickle.dumps(sample)) for name, sample in others.items()}
    return sum(size.get(name, 0) * count for name, count in wanted.items()), sum(size.values())


class Shifting:
    """An estimator with a state: each call takes one more off."""

    calls = 0

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        self.calls += 1
        if len(scores) != len(rollouts) or any(s.value == FATAL for s in scores):
            raise ValueError("no advantage")
        return Advantages([float(s.value or 0) - self.calls for s in scores], {"seen": float(len(rollouts))})

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def rollout_groups(scores: Sequence[float]) -> list[RolloutGroup]:
    """A group per score, with two completions each, whose texts are longer than what rank 0 says of all."""
    rollouts = [replace(r, text=f"{n} " * 500) for n, r in enumerate(make_rollouts(len(scores), 2)[0])]
    prompts = [Prompt(r.prompt_id, ({"role": "user", "content": "?"},)) for r in rollouts[::2]]
    return [
        RolloutGroup(PromptGroup(prompts[n], (1, 2), 2), rollouts[2 * n : 2 * n + 2], [Score(score), Score(score + n)])
        for n, score in enumerate(scores)
    ]


def scored_step(strategy: Any, scores: Sequence[float], estimator: Any) -> tuple[AdvantageStep, Any, Any]:
    """The stage, and what it is given, of one rollout batch; rank 0 has sampled two groups."""
    drawn = rollout_groups(scores)
    own = drawn if strategy.world_size == 1 else (drawn[:2] if strategy.rank == 0 else drawn[2:])
    batch = batch_of([g.group for g in drawn], own, 0)
    parts: Any = SimpleNamespace()
    step = AdvantageStep(
        CheckedAdvantage(estimator), None, parts, parts, parts, RankZero(strategy), OnlineTrainerConfig(name="t")
    )
    return step, step.penalize_and_gather(batch, ForwardResults(None, None)), batch


def advantages(strategy: Any, scores: Sequence[float], estimator: Shifting) -> tuple[Advantages, list[float]]:
    """Advantages of one rollout batch, and the scores of all ranks."""
    step, scored, batch = scored_step(strategy, scores, estimator)
    return step.estimate(scored, batch).advantages, [float(s.value or 0) for s in scored.scores]


def by_group(strategy: Any, scores: Sequence[float]) -> dict[str, Any]:
    """Estimates made by rank 0 for all, and by each rank of its own groups; the first group's scores are equal."""
    found: dict[str, Any] = {}
    for estimator in (GroupNorm(GroupNormConfig()), OptimalBaseline(OptimalBaselineConfig())):
        given = scored_step(strategy, scores, estimator)
        for road, estimate in (("rank 0", AdvantageStep.estimate), ("own", estimate_own_groups)):
            made: Any = estimate(*given)
            row = [made.advantages.values, made.advantages.metrics, made.without_signal, made.metrics]
            found[f"{type(estimator).__name__}, {road}"] = row
    return found


def estimates(strategy: Counted) -> dict[str, Any]:
    """Two batches, and one whose estimator fails on the rank that calls it."""
    estimator, scores = Shifting(), [1.0, 2.0, 3.0]
    advantages(strategy, scores, estimator)
    strategy.received = 0
    found, every_score = advantages(strategy, scores, estimator)
    row: dict[str, Any] = {"values": found.values, "scores": every_score, "metrics": found.metrics}
    row |= {"calls": estimator.calls, "received": strategy.received}
    try:
        advantages(strategy, [1.0, FATAL, 3.0], estimator)
    except (OtherRankFailed, ComponentError) as error:
        row["error"] = f"{type(error).__name__}: {error}"
    return row


def completions(strategy: Counted) -> dict[str, Any]:
    """Which completions a rank has of five groups that are kept and two that are set aside."""
    drawn = rollout_groups([float(n) for n in range(7)])
    known = [g if n % 2 == strategy.rank else replace(g, rollouts=()) for n, g in enumerate(drawn)]
    unused: Any = None
    collector = DynamicCollector(unused, unused, unused, strategy, CollectorSettings(5, SamplingParams()), unused)
    share, set_aside = collector._with_completions(known[:5], known[5:])
    assert all(g.rollouts == () or [r.seed for r in g.rollouts] == [r.seed for r in drawn[n].rollouts]
               for n, g in enumerate(set_aside, 5))  # fmt: skip
    ids = [[r.prompt_id for r in group.rollouts] for group in (*share, *set_aside)]
    return {"ids": ids, "drawn": [[r.prompt_id for r in group.rollouts] for group in drawn]}


def main(out: str) -> None:
    """Every case on two ranks."""
    strategy = Counted(int(os.environ["WORLD_SIZE"]), "cpu", 60)
    found, weights = dict[str, Any](), dict[str, torch.Tensor]()
    for case in CASES:
        strategy.received = strategy.exchanges = 0
        here = update(strategy, case)
        rows = strategy.gather_objects(
            {
                "ran": here["ran"],
                "received": strategy.received,
                "facts": FACTS * strategy.exchanges,
                "metrics": here["metrics"],
            }
        )
        found[case], weights[case] = {"ranks": rows}, here["weights"]
    found["estimates"] = strategy.gather_objects(estimates(strategy))
    found["by group"] = strategy.gather_objects(by_group(strategy, [1.0, 2.0, 3.0]))
    found["completions"] = strategy.gather_objects(completions(strategy))
    if strategy.rank == 0:
        Path(out).write_text(json.dumps(found))
        save_file(weights, Path(out).with_suffix(".safetensors"))
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1])

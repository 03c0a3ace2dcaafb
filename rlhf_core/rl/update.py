"""All optimizer updates of one rollout batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.distributed.exchange import redistribute
from rlhf_core.plugins import hooks as hk
from rlhf_core.plugins.protocols import Strategy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.entropy import keep_uncertain
from rlhf_core.rl.loss_terms import with_sample_size
from rlhf_core.runs.session import RunSession
from rlhf_core.training.drift import Drift, DriftCheck
from rlhf_core.training.learner import Learner, MetricSums, Observe, means
from rlhf_core.training.micro_batches import PolicyMicroBatcher
from rlhf_core.training.policy_module import PolicyModule, columns
from rlhf_core.training.training_sample import TrainingSample, regrouped

Groups = list[list[TrainingSample]]
"""Samples, group by group."""


class OptimizerBatch(NamedTuple):
    """What one rank has to do with one optimizer batch."""

    trained: list[TrainingSample]
    """This rank's share of what can contribute a gradient, from whichever rank sampled it."""
    totals: tuple[float, float]
    """Tokens, and sequences that have any, of all that this rank sampled of the batch; over ranks the denominators."""


class UpdateStep:
    """Cuts a rollout batch into optimizer batches and updates the policy on each.

    Args:
        learner: makes one update.
        module: the policy; old logprobs come from it.
        micro_batcher: cuts forwards, and shares groups out to ranks.
        strategy: ranks.
        config: batch sizes and what is left out.
        session: hooks and counts.
        seed: of the order of optimizer batches.
    """

    def __init__(
        self,
        learner: Learner,
        module: PolicyModule,
        micro_batcher: PolicyMicroBatcher,
        strategy: Strategy,
        config: OnlineTrainerConfig,
        session: RunSession,
        seed: int,
    ) -> None:
        self.learner, self.module, self.micro_batcher, self.strategy = learner, module, micro_batcher, strategy
        self.config, self.session, self.seed = config, session, seed
        self.updates_per_step = config.updates_per_step
        self.drift = DriftCheck(config.drift_check, session.counts)
        """Compares engine and trainer."""

    def __call__(
        self,
        step: int,
        groups: Groups,
        sampled_by: int,
        *,
        critic_only: bool = False,
        observe: Observe | None = None,
    ) -> dict[str, float]:
        """Update on one rollout batch; all ranks call it together.

        Args:
            step: the step.
            groups: this rank's.
            sampled_by: policy version that sampled them.
            critic_only: the policy gets no update.
            observe: sees every micro-batch.

        Returns:
            Each metric's weighted mean over the updates, over the sequences that were run; counts are added.
            ``drift/`` is that of the update made with the very weights that sampled.
        """
        groups, metrics = self._measure(groups)
        samples = [s for group in groups for s in group]
        event = hk.BatchReady(step, len(samples), sum(s.tokens for s in samples))
        self.session.hooks.fire("rlhf_batch_ready", event)
        updates: list[MetricSums] = []
        for batch in self._batches(step, groups):
            sums = self._update(step, batch, sampled_by, critic_only, first=not updates, observe=observe)
            updates.append(sums)
            if self._too_far(sums, len(updates)):
                break
        return {**with_sample_size(means(updates)), **metrics}

    def _update(
        self,
        step: int,
        batch: OptimizerBatch,
        sampled_by: int,
        critic_only: bool,
        *,
        first: bool,
        observe: Observe | None,
    ) -> MetricSums:
        """One update; what cannot contribute a gradient is counted in the denominators and not run."""
        staleness = self.learner.version - sampled_by
        sums = self.learner.update_sums(batch.trained, batch.totals, critic_only=critic_only, observe=observe)
        if first or not staleness:
            self.drift(step, Drift.of(sums), staleness)
        return {name: value for name, value in sums.items() if not staleness or not name.startswith("drift/")}

    def _measure(self, groups: Groups) -> tuple[Groups, dict[str, float]]:
        """What is measured once per rollout batch, before any update: old logprobs, and which tokens are uncertain."""
        config, several, choose = self.config, self.updates_per_step > 1, self.config.entropy_quantile < 1
        samples = [s for group in groups for s in group]
        if config.importance.old_policy == "behaviour":
            assert all(s.behaviour_T is not None for s in samples), "an engine's logprobs come with every rollout"
            samples, several = [s.with_(old_T=s.behaviour_T) for s in samples if s.behaviour_T is not None], False
        if not several and not choose:
            return regrouped(samples, groups), {}
        measured = self.learner.no_grad.rows(
            samples, self.micro_batcher, lambda module, micro: module.measure_micro(micro, entropy=choose)
        )
        old, entropies = columns(measured)
        metrics: dict[str, float] = {}
        if several:
            samples = [s.with_(old_T=old_T) for s, old_T in zip(samples, old)]
        if choose:
            samples, metrics = keep_uncertain(samples, entropies, config.entropy_quantile, self.strategy)
        return regrouped(samples, groups), metrics

    def _too_far(self, sums: MetricSums, made: int) -> bool:
        """Whether the policy has left the one that sampled by more than ``target_kl``, with updates still to come."""
        limit, left = self.config.target_kl, self.updates_per_step - made
        total, weight = sums.get("approx_kl", (0.0, 0.0))
        if limit is None or not left or not weight or total / weight <= limit:
            return False
        self.session.counts["updates_beyond_target_kl"] += left
        return True

    def _with_gradient(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        """The samples that can contribute a gradient."""
        return [s for s in samples if s.tokens and not (self._drops_zero_advantages and s.zero_advantage)]

    @property
    def _drops_zero_advantages(self) -> bool:
        config = self.config
        kl_in_loss = config.kl.where == "loss" and config.kl.coefficient > 0
        other_terms = kl_in_loss or config.entropy_coefficient != 0 or self.module.critic is not None
        return config.drop_constant_groups and not other_terms

    def _batches(self, step: int, groups: Groups) -> Iterator[OptimizerBatch]:
        """This rank's share of every optimizer batch.

        With several batches the groups of *all* ranks are permuted (anew in every epoch), cut into batches, and each
        batch is shared out, so that the process count changes no batch. With micro-batches by tokens a single batch is
        shared out anew too, by the work of what is left to train on. What a group costs is told to every rank; its
        samples are sent to those that train on them, once for all epochs.
        """
        trained = [self._with_gradient(group) for group in groups]
        epochs = self.config.epochs_per_rollout_batch
        if self.updates_per_step == epochs and self.config.micro_batch_tokens is None:
            yield from [OptimizerBatch([s for group in trained for s in group], _totals(groups))] * epochs
            return
        shards = self.strategy.gather_objects([self.micro_batcher.cost(group) for group in trained])
        first = sum(len(shard) for shard in shards[: self.strategy.rank])
        batches = self._places(step, sum(map(len, shards)))
        shares = self._shares(batches, [cost for shard in shards for cost in shard])
        wanted = [sorted({place for share in shares for place in share[rank]}) for rank in range(len(shards))]
        sent = redistribute(self.strategy, {first + n: group for n, group in enumerate(trained) if group}, wanted)
        own = range(first, first + len(groups))
        for places, share in zip(batches, shares, strict=True):
            totals = _totals([groups[place - first] for place in places if place in own])
            yield OptimizerBatch([s for place in share[self.strategy.rank] for s in sent.get(place, ())], totals)

    def _places(self, step: int, count: int) -> list[list[int]]:
        """The groups of each optimizer batch, ascending; they are numbered over all ranks."""
        batches: list[list[int]] = []
        epochs = self.config.epochs_per_rollout_batch
        batches_per_epoch = self.updates_per_step // epochs
        for epoch in range(epochs):
            order = np.arange(count)
            if batches_per_epoch > 1:
                order = np.random.default_rng([self.seed, step, epoch]).permutation(count)
            batches += [np.sort(places).tolist() for places in np.array_split(order, batches_per_epoch)]
        return batches

    def _shares(self, batches: Sequence[Sequence[int]], costs: Sequence[float]) -> list[list[list[int]]]:
        """Of each batch the groups that each rank trains on."""
        parts = [self.micro_batcher.share([costs[n] for n in places], self.strategy.world_size) for places in batches]
        return [[[places[n] for n in part] for part in share] for places, share in zip(batches, parts, strict=True)]


def _totals(groups: Sequence[Sequence[TrainingSample]]) -> tuple[float, float]:
    """Tokens, and sequences that have any."""
    tokens = [s.tokens for group in groups for s in group]
    return float(sum(tokens)), float(sum(n > 0 for n in tokens))


def group_counts(values: Sequence[Any], scores_ok: Sequence[bool], group_ids: Sequence[int]) -> dict[str, int]:
    """Count groups that teach nothing: equal scores, or (under another name) too few scores to compare.

    Args:
        values: advantages of the completions of all ranks, None where there is none.
        scores_ok: whether each has a score.
        group_ids: the group of each.
    """
    alive = {g for g, v in zip(group_ids, values) if v is not None and np.any(v)}
    size, scored = Counter(group_ids), Counter(g for g, ok in zip(group_ids, scores_ok) if ok)
    without_signal = [g for g in size if g not in alive]
    unscored = sum(scored[g] < min(2, size[g]) for g in without_signal)
    return {"constant_groups": len(without_signal) - unscored, "unscored_groups": unscored}

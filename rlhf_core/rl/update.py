"""All optimizer updates of one rollout batch, and the terms that the loop adds to the policy's loss."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from rlhf_core.distributed.group import redistribute
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.hooks import StepMetrics
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.runs.session import RunSession
from rlhf_core.training.functional import LOG_LIMIT, effective_sample_size, kl_loss
from rlhf_core.training.learner import Learner, MetricSums, Observe, means
from rlhf_core.training.policy_module import LOGPROBS, Measure, PolicyMicroBatcher, PolicyModule
from rlhf_core.training.rollout_batch import TrainingSample, by_group
from rlhf_core.training.weight_sync import Drift, DriftCheck
from rlhf_core.types.batches import LossOutput, TokenBatch

MEAN_SQUARE = "importance/mean_square"
"""Of an importance correction (``rlhf-plugin-schedule``), kept until :func:`with_sample_size` makes an effective sample
size of it, which is not a mean over micro-batches."""
Metrics = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class PolicyTerms:
    r"""``loss_BT + beta * KL_BT - c * H_BT``; a term whose coefficient is 0 is left out.

    The sum is not reduced: the core reduces all terms alike.

    Example:
        CheckedLoss(loss, terms=[PolicyTerms(kl_coefficient=0.04)])
    """

    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    """k1, k2 or k3: the term's value; its gradient is the KL's with any."""
    stale: bool = False
    """The rollouts may be older than the step, whose old logprobs are then not those of the policy that sampled: the
    KL weighs against ``batch.behaviour_logprobs_BT``."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (Williams and Peng 1991); the gradient flows through the entropy."""

    def __call__(self, out: LossOutput, batch: TokenBatch) -> LossOutput:
        """The loss's answer with the terms; the logprobs that they compare must be in the batch."""
        loss_BT, metrics = out.loss, dict(out.metrics)
        if self.kl_coefficient:
            assert batch.ref_logprobs_BT is not None, "KL in the loss needs reference logprobs"
            sampled_BT = batch.behaviour_logprobs_BT if self.stale else batch.old_logprobs_BT
            assert sampled_BT is not None or not self.stale, "stale rollouts come with the engine's logprobs"
            kl_BT = kl_loss(batch.logprobs_BT, batch.ref_logprobs_BT, self.kl_estimator, old_logprobs_BT=sampled_BT)
            loss_BT = loss_BT + self.kl_coefficient * kl_BT
            metrics |= count_clamped(batch.logprobs_BT.detach(), batch.ref_logprobs_BT, sampled_BT, batch.mask_BT)
        if self.entropy_coefficient:
            assert batch.entropy_BT is not None, "an entropy bonus needs entropies"
            loss_BT = loss_BT - self.entropy_coefficient * batch.entropy_BT
        return LossOutput(loss_BT, metrics)


def count_clamped(
    logprobs_BT: torch.Tensor, ref_BT: torch.Tensor, sampled_BT: torch.Tensor | None, mask_BT: torch.Tensor
) -> Metrics:
    """Tokens at which an exponential of the KL was held at its limit; their own weight, so that none is no metric."""
    far_BT = ref_BT - logprobs_BT > LOG_LIMIT
    if sampled_BT is not None:
        far_BT = far_BT | ((logprobs_BT - sampled_BT).abs() > LOG_LIMIT)
    count = (far_BT & mask_BT).sum()
    return {"kl_clamped": (count, count)}


def with_sample_size(metrics: dict[str, float]) -> dict[str, float]:
    """Replace the mean square by ``importance/ess``, the effective sample size as a share of the samples."""
    if MEAN_SQUARE not in metrics:
        return metrics
    rest = {k: v for k, v in metrics.items() if k != MEAN_SQUARE}
    return {**rest, "importance/ess": effective_sample_size(metrics["importance/mean_ratio"], metrics[MEAN_SQUARE])}


Groups = list[list[TrainingSample]]


OptimizerBatch = tuple[list[TrainingSample], tuple[float, float]]
"""This rank's share of what can contribute a gradient, from whichever rank sampled it; tokens, and sequences that have
any, of all that this rank sampled of the batch: over ranks the denominators."""


@dataclass(eq=False)
class UpdateStep:
    """Cuts a rollout batch into optimizer batches and updates the policy on each."""

    learner: Learner
    module: PolicyModule
    micro_batcher: PolicyMicroBatcher
    strategy: Strategy
    config: OnlineTrainerConfig
    session: RunSession
    seed: int
    drift: DriftCheck

    def __post_init__(self) -> None:
        self.updates_per_step = self.config.updates_per_step

    def __call__(
        self,
        step: int,
        groups: Groups,
        behaviour_version: int,
        *,
        critic_only: bool = False,
        observe: Observe | None = None,
    ) -> dict[str, float]:
        """Update on one rollout batch; all ranks call it together."""
        groups, metrics = self._measure(groups)
        samples = [s for group in groups for s in group]
        event = StepMetrics(step, {"sequences": len(samples), "tokens": sum(s.tokens for s in samples)})
        self.session.hooks.fire("rlhf_batch_ready", event)
        updates: list[MetricSums] = []
        for trained, totals in self._batches(step, groups):
            staleness = self.learner.version - behaviour_version
            sums = self.learner.update_sums(trained, totals, critic_only=critic_only, observe=observe)
            if not updates or not staleness:
                self.drift(step, Drift.of(sums), staleness)
            if staleness:
                sums = {name: value for name, value in sums.items() if not name.startswith("drift/")}
            updates.append(sums)
            if self.updates_per_step > 1:
                self._log(step, len(updates), sums)
            if self._too_far(sums, len(updates)):
                break
        return {**with_sample_size(means(updates)), **metrics}

    def _log(self, step: int, made: int, sums: MetricSums) -> None:
        """One row of ``updates.jsonl``; ``epoch`` is the pass over the rollout batch, from 1."""
        epoch = 1 + (made - 1) * self.config.epochs_per_rollout_batch // self.updates_per_step
        seconds = {"start": time.monotonic() - self.session.started}
        row = {"epoch": epoch, "update": self.learner.version, "time": seconds}
        self.session.updates(step, row | with_sample_size(means([sums])))

    def _measure(self, groups: Groups) -> tuple[Groups, dict[str, float]]:
        """What is measured once per rollout batch, before any update: old logprobs, and which tokens are uncertain."""
        config, several, choose = self.config, self.updates_per_step > 1, self.config.entropy_quantile < 1
        samples = [s for group in groups for s in group]
        if config.importance.old_policy == "behaviour":
            assert all(s.behaviour_T is not None for s in samples), "an engine's logprobs come with every rollout"
            samples, several = [replace(s, old_T=s.behaviour_T) for s in samples if s.behaviour_T is not None], False
        if not several and not choose:
            return by_group(samples, map(len, groups)), {}
        want: frozenset[Measure] = frozenset({"logprobs", "entropy"}) if choose else LOGPROBS
        measured = self.learner.no_grad.rows(samples, self.micro_batcher, partial(PolicyModule.measure, want=want))
        metrics: dict[str, float] = {}
        if several:
            samples = [replace(s, old_T=row.logprobs_T) for s, row in zip(samples, measured)]
        if choose:
            entropies = [row.entropy_T for row in measured]
            keep_uncertain = scheduler("uncertain", "trainer.entropy_quantile")()
            samples, metrics = keep_uncertain(samples, entropies, config.entropy_quantile, self.strategy)
        return by_group(samples, map(len, groups)), metrics

    def _too_far(self, sums: MetricSums, made: int) -> bool:
        """Whether the policy has left the one that sampled by more than ``target_kl``, with updates still to come."""
        limit, left = self.config.target_kl, self.updates_per_step - made
        total, weight = sums.get("approx_kl", (0.0, 0.0))
        if limit is None or not left or not weight or total / weight <= limit:
            return False
        self.session.counts["updates_beyond_target_kl"] += left
        return True

    def _with_gradient(self, groups: Groups) -> Groups:
        """The samples of each group that can contribute a gradient."""
        config = self.config
        kl_in_loss = config.kl.where == "loss" and config.kl.coefficient > 0
        other_terms = kl_in_loss or config.entropy_coefficient != 0 or self.module.critic is not None
        drops = config.drop_constant_groups and not other_terms
        return [[s for s in group if s.tokens and (not drops or np.any(s.advantages_T))] for group in groups]

    def _batches(self, step: int, groups: Groups) -> Iterator[OptimizerBatch]:
        """This rank's share of every optimizer batch.

        With several batches the groups of *all* ranks are permuted (anew in every epoch), cut into batches, and each
        batch is shared out, so that the process count changes no batch. With micro-batches by tokens a single batch is
        shared out by the work of what is left to train on. Every rank knows what a group costs; its samples are sent
        to the ranks that train on them, once for all epochs.
        """
        trained = self._with_gradient(groups)
        epochs = self.config.epochs_per_rollout_batch
        if self.updates_per_step == epochs and self.config.micro_batch_tokens is None:
            yield from [([s for group in trained for s in group], _totals(groups))] * epochs
            return
        rank, world_size = self.strategy.rank, self.strategy.world_size
        costs_of_ranks = self.strategy.gather_objects([self.micro_batcher.cost(group) for group in trained])
        costs = [cost for rank_costs in costs_of_ranks for cost in rank_costs]
        first = sum(len(rank_costs) for rank_costs in costs_of_ranks[:rank])
        batches = self._permuted(step, len(costs))
        shares = [self.micro_batcher.share(batch, costs, world_size) for batch in batches]
        needed = [sorted({group for share in shares for group in share[to]}) for to in range(world_size)]
        received = redistribute(self.strategy, {first + n: group for n, group in enumerate(trained) if group}, needed)
        for batch, share in zip(batches, shares, strict=True):
            own = [groups[group - first] for group in batch if first <= group < first + len(groups)]
            yield [s for group in share[rank] for s in received.get(group, ())], _totals(own)

    def _permuted(self, step: int, count: int) -> list[list[int]]:
        """The groups of each optimizer batch, ascending; they are numbered over all ranks."""
        batches: list[list[int]] = []
        epochs = self.config.epochs_per_rollout_batch
        batches_per_epoch = self.updates_per_step // epochs
        for epoch in range(epochs):
            order = np.arange(count)
            if batches_per_epoch > 1:
                order = np.random.default_rng([self.seed, step, epoch]).permutation(count)
            batches += [np.sort(batch).tolist() for batch in np.array_split(order, batches_per_epoch)]
        return batches


def _totals(groups: Sequence[Sequence[TrainingSample]]) -> tuple[float, float]:
    """Tokens, and sequences that have any."""
    tokens = [s.tokens for group in groups for s in group]
    return float(sum(tokens)), float(sum(n > 0 for n in tokens))

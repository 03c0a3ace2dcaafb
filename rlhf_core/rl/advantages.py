"""From scores to advantages: reference logprobs, critic values, penalties, the estimator.

Suffix: ``_T`` completion tokens of one rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_core.distributed.exchange import gather_on_first, scatter_from_first
from rlhf_core.plugins.component_errors import blamed_on
from rlhf_core.plugins.contracts import check_advantages, check_returns
from rlhf_core.plugins.protocols import Stateful, Strategy
from rlhf_core.rl.config import KLSettings, OnlineTrainerConfig, OverlongSettings
from rlhf_core.training.functional.kl import kl_value
from rlhf_core.training.micro_batches import MicroBatcher
from rlhf_core.training.no_grad_forward import NoGradForward
from rlhf_core.training.policy_module import PolicyModule, ReferencePolicy
from rlhf_core.training.rollout_batch import RolloutBatch
from rlhf_core.training.training_sample import Floats, TrainingSample, by_group
from rlhf_core.types.frozen import frozen
from rlhf_core.types.rollouts import Advantages, Rollout, Score, TokenValues


@dataclass(frozen=True)
class ForwardResults:
    """What forwards without gradient give for this rank's completions, before any update."""

    references: Sequence[Floats] | None
    """Logprobs under the reference policy; None where nothing asks for them."""
    values: Sequence[TokenValues] | None
    """The critic's; None without one."""


@dataclass(frozen=True)
class ScoredRollouts:
    """Scores of all ranks' completions, penalties subtracted. What they are scores of is on rank 0 alone, which calls
    the estimator and writes the trace."""

    scores: Sequence[Score]
    filtered_scores: Sequence[Score]
    rollouts: Sequence[Sequence[Rollout]]
    """Of each rank, on rank 0; empty on the others."""
    values: Sequence[TokenValues] | None
    """Of all ranks' completions, on rank 0; None elsewhere, and without a critic."""

    @property
    def every_score(self) -> list[Score]:
        """Those of filtered groups too."""
        return [*self.scores, *self.filtered_scores]

    @property
    def every_rollout(self) -> list[Rollout]:
        """Those of all ranks, on rank 0."""
        return [r for shard in self.rollouts for r in shard]


class AdvantageStep:
    """Turns a rollout batch into advantages, over the completions of all ranks; rank 0 does it for the others.

    Args:
        estimator: the run's advantage.
        label: names it in errors.
        reference: None where nothing asks for it.
        module: the policy, with the critic if the estimator has one.
        micro_batcher: cuts the forwards without gradient.
        no_grad: forwards of that module, prepared.
        strategy: brings completions to rank 0, and advantages back.
        config: KL and length penalties.
    """

    def __init__(
        self,
        estimator: Any,
        label: str,
        reference: ReferencePolicy | None,
        module: PolicyModule,
        micro_batcher: MicroBatcher,
        no_grad: NoGradForward,
        strategy: Strategy,
        config: OnlineTrainerConfig,
    ) -> None:
        self.estimator, self.label, self.reference, self.module = estimator, label, reference, module
        self.micro_batcher, self.no_grad, self.strategy = micro_batcher, no_grad, strategy
        self.config = config

    def forward(self, samples: Sequence[TrainingSample]) -> ForwardResults:
        """Reference logprobs and critic values of this rank's completions."""
        references = None
        if self.reference is not None:
            references = self.reference.logprobs(samples, self.module, self.micro_batcher)
        if self.module.critic is None:
            return ForwardResults(references, None)
        values = self.no_grad.rows(samples, self.micro_batcher, lambda module, micro: module.values_micro(micro))
        rows = references if references is not None else [None] * len(values)
        return ForwardResults(references, [TokenValues(row, ref) for row, ref in zip(values, rows)])

    def score(self, batch: RolloutBatch, forward: ForwardResults) -> ScoredRollouts:
        """Subtract the penalties, and bring every rank's completions to rank 0, and all scores to every rank. An
        estimator with a critic charges the KL itself, token by token."""
        config, scores = self.config, list(batch.scores)
        penalised = config.kl.where == "reward" and config.kl.coefficient > 0
        if penalised and forward.references is not None and forward.values is None:
            rows = zip(scores, batch.rollouts, forward.references)
            scores = [apply_kl_penalty(score, rollout, ref_T, config.kl) for score, rollout, ref_T in rows]
        scores = self._without_overlong(scores, batch.rollouts)
        shards = gather_on_first(self.strategy, (batch.rollouts, scores, forward.values))
        every_score, filtered_scores = scatter_from_first(
            self.strategy,
            lambda: (
                [
                    (
                        [s for shard in shards for s in shard[1]],
                        self._without_overlong(batch.filtered_scores, batch.filtered_rollouts),
                    )
                ]
                * self.strategy.world_size
            ),
        )
        values = None if forward.values is None or not shards else [v for shard in shards for v in shard[2] or ()]
        return ScoredRollouts(every_score, filtered_scores, [shard[0] for shard in shards], values)

    def _without_overlong(self, scores: Sequence[Score], rollouts: Sequence[Rollout]) -> list[Score]:
        limit, settings = self.config.sampling.max_tokens, self.config.overlong
        if not settings.cache:
            return list(scores)
        return [apply_overlong_penalty(score, rollout, limit, settings) for score, rollout in zip(scores, rollouts)]

    def estimate(self, scored: ScoredRollouts, group_ids: Sequence[int]) -> Advantages:
        """One advantage per completion of this rank; on rank 0 those of the other ranks follow.

        Rank 0 calls the estimator, and the others take over its state where it has one.

        Raises:
            PluginError: the estimator returned something else.
            ComponentError: it raised.
            OtherRankFailed: on the other ranks, where it raised on rank 0.
        """
        advantages, state = scatter_from_first(self.strategy, lambda: self._for_each_rank(scored, group_ids))
        if state is not None:
            self.estimator.load_state_dict(state)
        return advantages

    def _for_each_rank(
        self, scored: ScoredRollouts, group_ids: Sequence[int]
    ) -> list[tuple[Advantages, dict[str, Any] | None]]:
        """What rank 0 sends to each rank: all advantages to itself, to the others their own, and the new state."""
        every = self._of_all_ranks(scored, group_ids)
        several = len(scored.rollouts) > 1
        state = self.estimator.state_dict() if several and isinstance(self.estimator, Stateful) else None
        ends = np.cumsum([len(shard) for shard in scored.rollouts]).tolist()
        return [(every, None), *((_part(every, start, end), state) for start, end in pairwise(ends))]

    def _of_all_ranks(self, scored: ScoredRollouts, group_ids: Sequence[int]) -> Advantages:
        """The estimator, not called for no completions, sees read-only copies."""
        rollouts = scored.every_rollout
        if not rollouts:
            return Advantages([])
        values = () if scored.values is None else ([frozen(v) for v in scored.values],)
        arguments = ([frozen(r) for r in rollouts], [frozen(s) for s in scored.scores], list(group_ids), *values)
        with blamed_on(self.label, "estimate()"):
            answer = self.estimator.estimate(*arguments)
        advantages = check_advantages(answer, rollouts, self.label)
        return advantages if scored.values is None else check_returns(advantages, rollouts, self.label)


def _part(every: Advantages, start: int, end: int) -> Advantages:
    """The advantages of some neighbours, with the metrics of all."""
    returns = None if every.returns is None else list(every.returns[start:end])
    return Advantages(list(every.values[start:end]), dict(every.metrics), returns)


def with_advantages(
    samples: Sequence[TrainingSample], batch: RolloutBatch, advantages: Advantages, forward: ForwardResults
) -> list[list[TrainingSample]]:
    """This rank's samples with what their loss needs, group by group; those without a score are left out.

    Args:
        samples: one per completion of this rank.
        batch: its groups.
        advantages: of this rank, maybe followed by those of others.
        forward: reference logprobs and critic values of this rank.
    """
    trained: list[TrainingSample | None] = []
    for n, sample in enumerate(samples):
        advantage = advantages.values[n]
        if advantage is None:
            trained.append(None)
            continue
        sample = sample.with_advantage(advantage)
        if forward.references is not None:
            sample = sample.with_(ref_T=forward.references[n])
        returns_T = None if advantages.returns is None else advantages.returns[n]
        if forward.values is not None and returns_T is not None:
            sample = sample.with_(old_values_T=forward.values[n].values_T1[:-1], returns_T=returns_T)
        trained.append(sample)
    return by_group(trained, batch.own_groups)


def measure_kl(rollouts: Sequence[Rollout], references: Sequence[Any]) -> tuple[float, float]:
    """KL(policy that sampled || reference): k3 of every token that the policy chose, summed, and their number.

    It needs no forward: the engine's logprobs are compared with the reference's, so every rollout counts, those of
    constant groups too.
    """
    rows = [
        policy_tokens(rollout, kl_value(rollout.logprobs_T, ref_T, "k3"))
        for rollout, ref_T in zip(rollouts, references, strict=True)
    ]
    return float(sum(float(row.sum(dtype=np.float64)) for row in rows)), float(sum(len(row) for row in rows))


def apply_kl_penalty(score: Score, rollout: Rollout, reference_T: Any, settings: KLSettings) -> Score:
    """Subtract the completion's summed KL estimate from its score; the part ``kl`` stays visible.

    Tokens that the policy did not choose (``Rollout.mask_T``) are not charged.
    """
    if not score.ok or score.value is None:
        return score
    kl = float(policy_tokens(rollout, kl_value(rollout.logprobs_T, reference_T, settings.estimator)).sum())
    return replace(score, value=score.value - settings.coefficient * kl, parts={**score.parts, "kl": kl})


def apply_overlong_penalty(score: Score, rollout: Rollout, max_tokens: int, settings: OverlongSettings) -> Score:
    r"""Subtract DAPO's soft overlong penalty (Yu et al. 2025, eq. 13); the part ``overlong`` stays visible.

    With L tokens that the policy chose and a cache of C tokens before ``max_tokens`` M:
    :math:`w \cdot \mathrm{clip}((L - (M - C)) / C, 0, 1)`.
    """
    cache = settings.tokens(max_tokens)
    if not cache or not score.ok or score.value is None:
        return score
    length = len(policy_tokens(rollout, rollout.logprobs_T))
    over = settings.weight * min(1.0, max(0.0, (length - (max_tokens - cache)) / cache))
    return replace(score, value=score.value - over, parts={**score.parts, "overlong": -over})


def policy_tokens(rollout: Rollout, values_T: Any) -> Any:
    """The values of the tokens that the policy chose."""
    return values_T if rollout.mask_T is None else values_T[rollout.mask_T]

"""From scores to advantages: reference logprobs, critic values, penalties, the estimator.

Suffix: ``_T`` completion tokens of one rollout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.distributed.group import RankZero
from rlhf_core.plugins.contracts import CheckedAdvantage
from rlhf_core.plugins.protocols import Stateful
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.settings import KLSettings, OverlongSettings
from rlhf_core.training.functional import kl_value
from rlhf_core.training.generation import rollout_metrics
from rlhf_core.training.micro_batches import MicroBatcher, NoGradForward
from rlhf_core.training.policy_module import Measure, PolicyModule, ReferencePolicy
from rlhf_core.training.rollout_batch import Floats, RolloutBatch, TrainingSample, by_group, cut_groups, per_token
from rlhf_core.types.rollouts import Advantages, FinishReason, Rollout, Score, TokenValues


class ForwardResults(NamedTuple):
    """What forwards without gradient give for this rank's completions, before any update."""

    references: Sequence[Floats] | None
    """Logprobs under the reference policy; None where nothing asks for them."""
    values: Sequence[TokenValues] | None
    """The critic's; None without one."""


class RankRollouts(NamedTuple):
    """What rank 0 is sent of each rank's completions."""

    rollouts: Sequence[Rollout]
    scores: Sequence[Score]
    """Penalties subtracted."""
    values: Sequence[TokenValues] | None
    kl: tuple[float, float, float]


class ScoredRollouts(NamedTuple):
    """Scores of all ranks' completions, penalties subtracted; the completions themselves are on rank 0 alone."""

    scores: Sequence[Score]
    set_aside_scores: Sequence[Score]
    ranks: Sequence[RankRollouts]
    """Of each rank, on rank 0; empty on the others."""
    own_scores: Sequence[Score]
    """Those of this rank's completions."""

    @property
    def rollouts(self) -> list[Rollout]:
        """Those of all ranks, on rank 0."""
        return [r for one in self.ranks for r in one.rollouts]


class Estimate(NamedTuple):
    """Advantages, and what rank 0 counts and measures over the completions of all ranks."""

    advantages: Advantages
    """Of this rank's completions."""
    metrics: Mapping[str, float]
    truncated: Mapping[str, int]
    """Completions that are left out of the loss."""
    without_signal: Mapping[str, int]
    kl: Mapping[str, float]
    """From the reference policy, per token; empty without one."""


@dataclass(eq=False)
class AdvantageStep:
    """Turns a rollout batch into advantages, over the completions of all ranks; rank 0 does it for the others."""

    estimator: CheckedAdvantage
    reference: ReferencePolicy | None
    module: PolicyModule
    micro_batcher: MicroBatcher
    no_grad: NoGradForward
    rank_zero: RankZero
    config: OnlineTrainerConfig
    outline: Callable[[Sequence[Rollout]], Sequence[Rollout]] = list
    """What rank 0 is sent of completions."""

    def reference_and_values(self, samples: Sequence[TrainingSample]) -> ForwardResults:
        """Reference logprobs and critic values of this rank's completions."""
        module, cut = self.module, self.micro_batcher
        references = None if self.reference is None else self.reference.logprobs(samples, module, cut)
        if module.critic is None:
            return ForwardResults(references, None)
        want: frozenset[Measure] = frozenset({"values"})
        measured = self.no_grad.rows(samples, cut, partial(PolicyModule.measure, want=want))
        rows = references if references is not None else [None] * len(measured)
        return ForwardResults(references, [TokenValues(row.values_T1, ref) for row, ref in zip(measured, rows)])

    def penalize_and_gather(self, batch: RolloutBatch, forward: ForwardResults) -> ScoredRollouts:
        """Subtract KL and length penalties; gather completions on rank 0 and scores on every rank. An estimator with a
        critic subtracts the KL itself, token by token."""
        config, scores = self.config, list(batch.scores)
        penalised = config.kl.where == "reward" and config.kl.coefficient > 0
        if penalised and forward.references is not None and forward.values is None:
            rows = zip(scores, batch.rollouts, forward.references)
            scores = [apply_kl_penalty(score, rollout, ref_T, config.kl) for score, rollout, ref_T in rows]
        scores = self._less_overlong(scores, batch.rollouts)
        kl = measure_kl(batch.rollouts, forward.references)
        ranks = self.rank_zero.gather(RankRollouts(self.outline(batch.rollouts), scores, forward.values, kl))
        with self.rank_zero.section() as section:
            all_scores = [score for one in ranks for score in one.scores]
            set_aside_scores = self._less_overlong(batch.set_aside_scores, batch.set_aside_rollouts)
            section.sent = [(all_scores, set_aside_scores)] * len(ranks)
        return ScoredRollouts(section.received[0], section.received[1], ranks, scores)

    def _less_overlong(self, scores: Sequence[Score], rollouts: Sequence[Rollout]) -> list[Score]:
        cap, rule = self.config.sampling.max_tokens, self.config.overlong
        return [apply_overlong_penalty(s, r, cap, rule) for s, r in zip(scores, rollouts)] if rule.cache else [*scores]

    def estimate(self, scored: ScoredRollouts, batch: RolloutBatch) -> Estimate:
        """Call the estimator with the completions, which rank 0 has; the others take over its state where it has
        one."""
        estimator = self.estimator.estimator
        with self.rank_zero.section() as section:
            values = [v for one in scored.ranks for v in one.values or ()] or None
            advantages = self.estimator.estimate(scored.rollouts, scored.scores, batch.group_ids, values)
            estimate = summarize(advantages, scored, batch, self.config.mask_truncated)
            state = estimator.state_dict() if len(scored.ranks) > 1 and isinstance(estimator, Stateful) else None
            ends = np.cumsum([0, *(len(one.rollouts) for one in scored.ranks)]).tolist()
            parts = [part(advantages, start, end) for start, end in pairwise(ends)]
            section.sent = [(estimate._replace(advantages=one), state) for one in parts]
        estimate, state = section.received
        if state is not None and not scored.ranks:
            estimator.load_state_dict(state)
        return estimate


def summarize(advantages: Advantages, scored: ScoredRollouts, batch: RolloutBatch, mask_truncated: bool) -> Estimate:
    """Advantages of all ranks' completions, with counts and metrics of them."""
    rollouts, scores_ok = scored.rollouts, [s.ok for s in scored.scores]
    kl, tokens = (sum(one.kl[n] for one in scored.ranks) for n in (0, 1))
    metrics = rollout_metrics([*rollouts, *batch.set_aside_rollouts])
    groups = [g.scores for g in (*cut_groups(batch.groups, rollouts, scored.scores), *batch.set_aside)]
    if all(score.value is None or 0 <= score.value <= 1 for group in groups for score in group):  # verdicts
        right, wrong = (sum(all(s.value == v for s in group) for group in groups) for v in (1.0, 0.0))
        metrics |= {"groups/all_right": right / len(groups), "groups/all_wrong": wrong / len(groups)}
    return Estimate(
        advantages,
        metrics,
        {"truncated_masked": sum(r.finish_reason is FinishReason.LENGTH for r in rollouts)} if mask_truncated else {},
        group_counts(advantages.values, scores_ok, batch.group_ids),
        {"kl": kl / tokens, "kl_max": max(one.kl[2] for one in scored.ranks)} if tokens else {},
    )


def part(every: Advantages, start: int, end: int) -> Advantages:
    """Those of some completions, with the metrics of all."""
    returns = None if every.returns is None else list(every.returns[start:end])
    return Advantages(list(every.values[start:end]), dict(every.metrics), returns)


def group_counts(values: Sequence[Any], scores_ok: Sequence[bool], group_ids: Sequence[int]) -> dict[str, int]:
    """Count groups that teach nothing: equal scores, or (under another name) too few scores to compare."""
    alive = {g for g, v in zip(group_ids, values) if v is not None and np.any(v)}
    size, scored = Counter(group_ids), Counter(g for g, ok in zip(group_ids, scores_ok) if ok)
    without_signal = [g for g in size if g not in alive]
    unscored = sum(scored[g] < min(2, size[g]) for g in without_signal)
    return {"constant_groups": len(without_signal) - unscored, "unscored_groups": unscored}


def with_advantages(
    samples: Sequence[TrainingSample], batch: RolloutBatch, advantages: Advantages, forward: ForwardResults
) -> list[list[TrainingSample]]:
    """This rank's samples with what their loss needs, group by group; those without a score are left out."""
    trained: list[TrainingSample | None] = []
    for n, sample in enumerate(samples):
        advantage = advantages.values[n]
        if advantage is None:
            trained.append(None)
            continue
        ref_T = None if forward.references is None else forward.references[n]
        sample = replace(sample, advantages_T=per_token(advantage, len(sample.completion_ids)), ref_T=ref_T)
        returns_T = None if advantages.returns is None else advantages.returns[n]
        if forward.values is not None and returns_T is not None:
            sample = replace(sample, old_values_T=forward.values[n].values_T1[:-1], returns_T=returns_T)
        trained.append(sample)
    return by_group(trained, (group.group_size for group in batch.own_groups))


def measure_kl(rollouts: Sequence[Rollout], references: Sequence[Any] | None) -> tuple[float, float, float]:
    """KL(policy that sampled || reference): k3 of every token that the policy chose, summed, their number, and the
    largest; zeros without a reference.

    It needs no forward: the engine's logprobs are compared with the reference's, so every rollout counts, those of
    constant groups too.
    """
    pairs = () if references is None else zip(rollouts, references, strict=True)
    rows = [policy_tokens(rollout, kl_value(rollout.logprobs_T, ref_T, "k3")) for rollout, ref_T in pairs]
    total = float(sum(float(row.sum(dtype=np.float64)) for row in rows))
    return total, float(sum(len(row) for row in rows)), max((float(row.max(initial=0.0)) for row in rows), default=0.0)


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

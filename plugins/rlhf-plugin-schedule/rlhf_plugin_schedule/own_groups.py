"""Advantages where the group is: each rank estimates those of its own groups, and rank 0 counts and measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from rlhf_core.rl.advantages import group_counts, summarize


def estimate_own_groups(step: Any, scored: Any, batch: Any) -> Any:
    """As ``AdvantageStep.estimate``, for an estimator that takes each group alone (``by_group``).

    Its metrics are means over the groups that have two scores or more, or all of fewer. All ranks call it together.
    """
    groups = [n for n, group in enumerate(batch.own_groups) for _ in range(group.group_size)]
    own = step.estimator.estimate(batch.rollouts, scored.own_scores, groups, None)
    scored_ok = [score.ok for score in scored.own_scores]
    scored_of = Counter(n for n, ok in zip(groups, scored_ok) if ok)
    compared = sum(scored_of[n] >= min(2, group.group_size) for n, group in enumerate(batch.own_groups))
    ranks = step.rank_zero.gather((own.metrics, compared, group_counts(own.values, scored_ok, groups)))
    with step.rank_zero.section() as section:
        metrics, total = Counter[str](), sum(weight for _, weight, _ in ranks)
        for measured, weight, _ in ranks:
            metrics.update({name: value * weight / total for name, value in measured.items() if weight})
        estimate = summarize(replace(own, values=[], metrics=dict(metrics)), scored, batch, step.config.mask_truncated)
        without_signal = {name: sum(counts[name] for *_, counts in ranks) for name in estimate.without_signal}
        section.sent = [estimate._replace(without_signal=without_signal)] * len(ranks)
    estimate = section.received
    return estimate._replace(advantages=replace(own, metrics=estimate.advantages.metrics))

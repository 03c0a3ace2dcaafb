"""Metrics of rollouts and of their scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.datasets import Datasets
from rlhf_core.types import FinishReason, Prompt, Rollout, Sample, Score, ScoreStatus


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0.0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0


def score_metrics(scores: Sequence[Score], prefix: str = "reward") -> dict[str, float]:
    """Mean and spread of the scores that exist (left out if none does), parts' means, and counts of the missing."""
    good = [float(s.value) for s in scores if s.ok and s.value is not None]
    centre = mean(good)
    rows = {f"{prefix}/mean": centre, f"{prefix}/std": mean([(v - centre) ** 2 for v in good]) ** 0.5} if good else {}
    names = sorted({n for s in scores for n in s.parts})
    rows |= {f"{prefix}/part/{n}": mean([s.parts[n] for s in scores if n in s.parts]) for n in names}
    for status in ScoreStatus:
        if status is not ScoreStatus.OK and any(s.status is status for s in scores):
            rows[f"{prefix}/{status.value}"] = float(sum(s.status is status for s in scores))
    return rows


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Lengths, how completions ended, and how often they repeat."""
    lengths = [len(r.completion_ids) for r in rollouts]
    truncated = [float(r.finish_reason is FinishReason.LENGTH) for r in rollouts]
    return {
        "completion_length/mean": mean([float(n) for n in lengths]),
        "completion_length/max": float(max(lengths, default=0)),
        "completion_length/min": float(min(lengths, default=0)),
        "truncated_fraction": mean(truncated),
        "tokens_generated": float(sum(lengths)),
        **repeat_metrics(rollouts),
    }


def gold_rows(
    datasets: Datasets, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]
) -> list[Mapping[str, Any] | None]:
    """The dataset's gold score of each completion, None where it has none."""
    return [datasets.gold(Sample(p, r.text, r.finish_reason)) for p, r in zip(prompts, rollouts)]


def repeat_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How much repeats, and how much of it is no chance.

    Returns:
        ``identical_fraction``: prompts all of whose completions are the same, of those that have several.
        ``repeat_surprise``: how improbable the repetitions are if completions are drawn independently from the
        behaviour policy, in nats per completion of a prompt that has several. At most about 0.2 however sure or
        unsure the policy is; larger where unlikely completions come again, as with one seed for all.
        ``commonest_fraction``: the commonest completion, whatever its prompt.
    """
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.prompt_id, []).append(rollout)
    several = [g for g in groups.values() if len(g) > 1]
    equal = sum(len({r.completion_ids for r in g}) == 1 for g in several)
    surprise = sum(_surprise(g) for g in several)
    commonest = max(Counter(r.completion_ids for r in rollouts).values(), default=0)
    return {
        "identical_fraction": equal / max(1, len(several)),
        "repeat_surprise": surprise / max(1, sum(map(len, several))),
        "commonest_fraction": commonest / max(1, len(rollouts)),
    }


def _surprise(group: Sequence[Rollout]) -> float:
    """k copies among n draws: the first is free, so about ``C(n - 1, k - 1) p^(k - 1)``."""
    count = Counter(r.completion_ids for r in group)
    logprobs = {r.completion_ids: _logprob(r) for r in group}
    chances = [
        math.log(math.comb(len(group) - 1, k - 1)) + (k - 1) * logprobs[ids] for ids, k in count.items() if k > 1
    ]
    return sum(max(0.0, -chance) for chance in chances)


def _logprob(rollout: Rollout) -> float:
    """Of what the policy chose; tool output is the same for everybody."""
    chosen = rollout.logprobs_T if rollout.mask_T is None else rollout.logprobs_T[rollout.mask_T]
    return float(chosen.sum())

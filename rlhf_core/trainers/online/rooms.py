"""Rooms 1 to 3 of the on-policy step: library, studio, court. Plain Python crosses every door."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_core.contracts import ValidatedEngine, check_rollouts, requested, score_samples
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.order import PromptOrder
from rlhf_core.errors import ScoreError
from rlhf_core.protocols import Agent, RewardModel, RolloutEngine
from rlhf_core.trainers.common.repetition import repeat_metrics
from rlhf_core.types import FinishReason, Prompt, PromptGroup, Rollout, Sample, SamplingParams, Score, ScoreStatus

Label = Callable[[object], str]


def request_seed(*parts: object) -> int:
    """A 63-bit seed from a run seed, step, prompt and index; the same on every rank and after a resume.

    Example:
        >>> request_seed(0, 3, "a/1", 2) == request_seed(0, 3, "a/1", 2)
        True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def class_name(component: object) -> str:
    """How a component is named where nobody knows better."""
    return type(component).__name__


class PromptLoader:
    """Room 1: which prompts come next, tokenized."""

    def __init__(self, order: PromptOrder, encode: Callable[[Prompt], tuple[int, ...]], group_size: int) -> None:
        self.order, self.encode, self.group_size = order, encode, group_size
        self.returned: list[Prompt] = []
        """Prompts that were taken and not trained on; they come next."""

    def take(self, count: int) -> list[PromptGroup]:
        """The next prompts, all different; the position is part of the checkpoint."""
        first: dict[str, Prompt] = {}
        rest: list[Prompt] = []
        for prompt in self.returned:
            if len(first) < count and prompt.id not in first:
                first[prompt.id] = prompt
            else:
                rest.append(prompt)
        chosen, self.returned = list(first.values()), rest
        return self.groups([*chosen, *self.order.take(count - len(chosen), chosen)], self.group_size)

    def put_back(self, groups: Sequence[PromptGroup]) -> None:
        """Let these prompts come next, before any other, in this order."""
        self.returned = [*(g.prompt for g in groups), *self.returned]

    def groups(self, prompts: Sequence[Prompt], group_size: int) -> list[PromptGroup]:
        """Tokenize prompts."""
        return [PromptGroup(p, self.encode(p), group_size) for p in prompts]


class RolloutGenerator:
    """Room 2: completions from the current policy.

    Args:
        agent: plays the episodes.
        engine: samples.
        seed: the run's.
        label: component -> how to name it in errors.
    """

    def __init__(self, agent: Agent, engine: RolloutEngine, seed: int, label: Label = class_name) -> None:
        self.agent, self.engine, self.seed = agent, ValidatedEngine(engine, label(engine)), seed
        self.agent_label = label(agent)

    def sample(
        self, groups: Sequence[PromptGroup], sampling: SamplingParams, version: int, *, tag: object
    ) -> list[Rollout]:
        """Sample every group's completions, group by group.

        Raises:
            PluginError: the engine or the agent returned other rollouts than asked for, or in another order.
        """
        seeds = [[request_seed(self.seed, tag, g.prompt.id, i) for i in range(g.group_size)] for g in groups]
        distinct = len({s for row in seeds for s in row})
        assert distinct == sum(g.group_size for g in groups), "two requests of a batch share a seed"
        rollouts = self.agent.play(groups, seeds, self.engine, sampling, version)
        return check_rollouts(rollouts, requested(groups), self.agent_label)


class RewardManager:
    """Room 3: scores. Sources may have their own reward.

    Args:
        default: reward for every source that names none.
        by_source: source label -> its own reward.
        max_missing: the run fails when more than this share of a batch has no score.
        label: component -> how to name it in errors.
    """

    def __init__(
        self, default: RewardModel, by_source: Mapping[str, RewardModel], max_missing: float, label: Label = class_name
    ) -> None:
        self.default, self.by_source, self.max_missing, self.label = default, dict(by_source), max_missing, label

    def score(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout; a reward that raises gives status ``error``, never 0.0.

        Raises:
            PluginError: a reward returned something else than one ``Score`` per sample.
        """
        scores: dict[int, Score] = {}
        by_reward: dict[int, list[int]] = {}
        rewards = {id(r): r for r in (self.default, *self.by_source.values())}
        for i, prompt in enumerate(prompts):
            by_reward.setdefault(id(self.by_source.get(prompt.source, self.default)), []).append(i)
        for key, rows in by_reward.items():
            samples = [Sample(prompts[i], rollouts[i].text, rollouts[i].finish_reason) for i in rows]
            scores |= zip(rows, score_samples(rewards[key], samples, self.label(rewards[key])))
        return [scores[i] for i in range(len(rollouts))]

    def check(self, scores: Sequence[Score]) -> None:
        """Fail loudly when too many scores are missing (deliberate gating does not count).

        Raises:
            ScoreError: with the commonest reason.
        """
        bad = [s for s in scores if not s.ok and s.status is not ScoreStatus.GATED]
        all_missing = not any(s.ok for s in scores)
        if scores and (all_missing or len(bad) > self.max_missing * len(scores)):
            first = bad[0] if bad else scores[0]
            raise ScoreError(
                f"{len(bad)} of {len(scores)} scores are missing",
                why=f"first: {first.status}: {first.detail}",
                fix="mend the reward, or raise trainer.max_missing_fraction",
            )


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

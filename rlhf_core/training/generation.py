"""Completions from the current policy, and their metrics."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.plugins.component_calls import component_errors, label_of, time_limit
from rlhf_core.plugins.contracts import CheckedEngine, check_rollouts, contract_error, requested
from rlhf_core.plugins.protocols import Agent, RolloutEngine
from rlhf_core.runs.metrics import mean
from rlhf_core.training.rewards import score_metrics
from rlhf_core.types.messages import POLICY, TurnStatus
from rlhf_core.types.rollouts import (
    FinishReason,
    MalformedRollout,
    PromptGroup,
    Rollout,
    RolloutRequest,
    SamplingParams,
    Score,
)


def request_seed(*parts: object) -> int:
    """A 63-bit seed from a run seed, step, prompt and index; the same on every rank and after a resume.

    Example:
        >>> request_seed(0, 3, "a/1", 2) == request_seed(0, 3, "a/1", 2)
        True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class SingleTurnAgent:
    """Samples every completion in one call of the engine."""

    def play(
        self,
        groups: Sequence[PromptGroup],
        seeds: Sequence[Sequence[int]],
        engine: RolloutEngine,
        sampling: SamplingParams,
        policy_version: int,
    ) -> list[Rollout]:
        """Return ``group_size`` rollouts per group, group by group."""
        requests = [
            RolloutRequest(g.prompt.id, g.token_ids, i, seed)
            for g, row in zip(groups, seeds)
            for i, seed in enumerate(row)
        ]
        return engine.generate(requests, sampling, policy_version)


class RolloutGenerator:
    """Samples completions from the current policy."""

    def __init__(self, agent: Agent, engine: RolloutEngine, seed: int = 0) -> None:
        self.agent, self.seed = agent, seed
        self.engine, self.agent_label = CheckedEngine(engine), label_of(agent)

    def sample(
        self,
        groups: Sequence[PromptGroup],
        sampling: SamplingParams,
        version: int,
        *,
        tag: object = None,
        seeds: Sequence[Sequence[int]] | None = None,
    ) -> list[Rollout]:
        """Sample every group's completions, group by group; where ``seeds`` are not given, ``tag`` decides them."""
        if seeds is None:
            seeds = [[request_seed(self.seed, tag, g.prompt.id, i) for i in range(g.group_size)] for g in groups]
        distinct = len({s for row in seeds for s in row})
        assert distinct == sum(g.group_size for g in groups), "two requests of a batch share a seed"
        limit = time_limit("rollout", f"play() of {self.agent_label} for {distinct} completions")
        with limit, component_errors(self.agent_label, "play()"):
            try:
                answer = self.agent.play(list(groups), seeds, self.engine, sampling, version)
            except MalformedRollout as error:
                raise contract_error(self.agent_label, f"a {error}", "an episode whose parts agree") from error
        rollouts = check_rollouts(answer, requested(groups), self.agent_label)
        for rollout in rollouts:
            check_episode(rollout, sampling.max_tokens, self.agent_label)
        return rollouts


def check_episode(rollout: Rollout, max_tokens: int, label: str) -> None:
    """Refuse an episode that is longer than asked for, or whose mask, logprobs and turns disagree."""
    name = f"{rollout.prompt_id}#{rollout.group_index}"
    count = len(rollout.completion_ids)
    if not 0 < count <= max_tokens:
        raise contract_error(
            label,
            f"{count} tokens for {name}",
            f"1 to {max_tokens}, results of tools included: sampling.max_tokens is the budget of an episode",
        )
    mask_T = np.ones(count, bool) if rollout.mask_T is None else np.asarray(rollout.mask_T)
    if mask_T.dtype != np.bool_:
        raise contract_error(label, f"a mask of {mask_T.dtype} for {name}", "booleans")
    read_T = ~mask_T
    if (bad := np.flatnonzero(read_T & (np.asarray(rollout.logprobs_T) != 0))).size:
        value = float(rollout.logprobs_T[bad[0]])
        raise contract_error(
            label, f"logprob {value:g} at token {bad[0]} of {name}, which is masked", "0.0 where mask_T is False"
        )
    if not mask_T.any():
        raise contract_error(label, f"{name} without a token of the policy", "mask_T True somewhere")
    if read_T.any() and not rollout.turns:
        raise contract_error(
            label,
            f"masked tokens in {name}, but no turns",
            "Rollout.turns, which say who wrote what: a reward must see nothing that the policy did not write",
        )
    for turn in rollout.turns:
        _check_turn(turn.role, turn.span, turn.message, mask_T, name, label)
    for segment in rollout.segments:
        start, end = segment.span
        if segment.role != POLICY and segment.prompt_ids is None and mask_T[start:end].any():
            raise contract_error(label, f"a segment of role '{segment.role}' with policy tokens in {name}", "a mask")


def _check_turn(role: str, span: tuple[int, int], message: Any, mask_T: Any, name: str, label: str) -> None:
    """A turn's message is JSON; none but the policy's holds tokens that count."""
    start, end = span
    if role != POLICY and mask_T[start:end].any():
        raise contract_error(
            label,
            f"a turn of role '{role}' in {name}, tokens {start} to {end}, that mask_T says the policy chose",
            f"mask_T False outside of turns of role '{POLICY}'",
        )
    try:
        json.dumps(message, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise contract_error(label, f"a message in {name} that is not JSON: {error}", "JSON values only") from error


def rollout_metrics(rollouts: Sequence[Rollout], scores: Sequence[Score] | None = None) -> dict[str, float]:
    """Lengths and counts of what the policy wrote, and of what it read in episodes; with ``scores``, theirs first."""
    lengths = [len(r.completion_ids) if r.mask_T is None else int(r.mask_T.sum()) for r in rollouts]
    truncated = [float(r.finish_reason is FinishReason.LENGTH) for r in rollouts]
    return {
        **({} if scores is None else score_metrics(scores)),
        "completion_length/mean": mean([float(n) for n in lengths]),
        "completion_length/max": float(max(lengths, default=0)),
        "completion_length/min": float(min(lengths, default=0)),
        "truncated_fraction": mean(truncated),
        "tokens_generated": float(sum(lengths)),
        **episode_metrics(rollouts),
        **repeat_metrics(rollouts),
    }


def episode_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Of episodes of several turns; nothing where there are none."""
    episodes = [r for r in rollouts if r.turns]
    if not episodes:
        return {}
    read = [turn for r in episodes for turn in r.turns if turn.role != POLICY]
    environment_tokens = sum(len(r.completion_ids) - int(r.mask_T.sum()) for r in rollouts if r.mask_T is not None)
    counts = {status: sum(turn.status is status for turn in read) for status in TurnStatus}
    return {
        "environment_tokens": float(environment_tokens),
        "turns/mean": mean([float(sum(turn.role == POLICY for turn in r.turns)) for r in episodes]),
        "turns/results": float(len(read)),
        **{f"turns/{status.value}": float(n) for status, n in counts.items() if n and status is not TurnStatus.OK},
    }


def repeat_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How much repeats. ``repeat_surprise``: how improbable that is if completions are drawn independently, in nats per
    completion of a prompt that has several; at most about 0.2, larger where the seeds of draws are the same.
    ``identical_fraction``: prompts all of whose several completions are the same.
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
    # logprobs of what the policy chose: a tool's output is the same for everybody
    chosen = {r.completion_ids: r.logprobs_T if r.mask_T is None else r.logprobs_T[r.mask_T] for r in group}
    copies = [(float(chosen[ids].sum()), k) for ids, k in count.items() if k > 1]
    chances = [math.log(math.comb(len(group) - 1, k - 1)) + (k - 1) * logprob for logprob, k in copies]
    return sum(max(0.0, -chance) for chance in chances)

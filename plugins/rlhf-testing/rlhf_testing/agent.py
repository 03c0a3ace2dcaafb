"""Conformance of agents, played against a stand-in engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext, ComponentConfig, PluginError
from rlhf_core.data import Prompt, PromptGroup
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams
from rlhf_core.training.generation import check_episode
from rlhf_testing.config import built, check_config
from rlhf_testing.report import left_alone, require
from rlhf_testing.samples import make_context

SAMPLING = SamplingParams(max_tokens=24)


class FakeEngine:
    """Draws letters; a request's prompt and seed alone decide them. Remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[RolloutRequest] = []
        self.calls: list[tuple[SamplingParams, int]] = []

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        self.requests += requests
        self.calls.append((sampling, policy_version))
        return [self._one(r, sampling, policy_version) for r in requests]

    def _one(self, request: RolloutRequest, sampling: SamplingParams, version: int) -> Rollout:
        rng = np.random.default_rng([request.seed, *request.prompt_ids])
        count = int(rng.integers(1, sampling.max_tokens + 1))
        ids = tuple(int(i) for i in rng.integers(97, 123, count))
        end = FinishReason.LENGTH if count == sampling.max_tokens else FinishReason.EOS
        return Rollout(
            request.prompt_id,
            request.group_index,
            request.prompt_ids,
            ids,
            -rng.random(count).astype(np.float32),
            version,
            end,
            "".join(map(chr, ids)),
            request.seed,
        )


def check_agent(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check an agent: ``group_size`` rollouts per group, group by group; distinct seeds; token in, token out within
    ``max_tokens``; the same seeds give the same episodes, whatever the neighbours; the policy version is passed on.

    Args:
        ctx: passed to ``build``; None makes one whose ``policy.tokenizer`` has one token per byte.
    """
    check_config(config, "agent")
    play = left_alone(config, built(config, "agent", ctx or make_context()).play, "play()", "groups", "seeds")
    groups = [
        PromptGroup(Prompt(f"kit/{p}", ({"role": "user", "content": f"{p}?"},)), (40 + p, 63), 2 + p) for p in range(3)
    ]
    seeds = [[1000 * p + g for g in range(group.group_size)] for p, group in enumerate(groups)]
    engine = FakeEngine()
    whole = play(groups, seeds, engine, SAMPLING, 7)
    expected = [(g.prompt.id, i) for g in groups for i in range(g.group_size)]
    got = [(r.prompt_id, r.group_index) for r in whole]
    rule = "play() returns group_size rollouts per group, in order"
    require(got == expected, config, rule, f"{got} instead of {expected}")
    rule, seen = "the policy version is passed on", "another one"
    require(all(v == 7 for _, v in engine.calls) and all(r.policy_version == 7 for r in whole), config, rule, seen)
    check_seeds(config, engine)
    check_rollouts(config, whole, groups)
    again = play(groups, seeds, FakeEngine(), SAMPLING, 7)
    rule = "the same seeds give the same episodes"
    require(_same(whole, again), config, rule, "two plays differ", "draw from the given seeds only")
    last = play(groups[2:], seeds[2:], FakeEngine(), SAMPLING, 7)
    rule = "an episode does not depend on its neighbours"
    require(_same(whole[-len(last) :], last), config, rule, "a group played alone differs")


def check_seeds(config: ComponentConfig, engine: FakeEngine) -> None:
    """No two requests with the same context share a seed."""
    keys = [(r.prompt_ids, r.seed) for r in engine.requests]
    seen, fix = f"{len(keys) - len(set(keys))} do", "use seeds[p][g], and derive a new one for each further turn"
    require(len(set(keys)) == len(keys), config, "no two requests for the same tokens share a seed", seen, fix)


def check_rollouts(config: ComponentConfig, rollouts: Sequence[Rollout], groups: Sequence[PromptGroup]) -> None:
    """Prompts as given; masks as long as the completion, and something to train on."""
    prompts: dict[str, Any] = {g.prompt.id: g.token_ids for g in groups}
    for rollout in rollouts:
        where = f"{rollout.prompt_id}#{rollout.group_index}"
        rule = "prompt_ids are the group's token_ids"
        fix = "what comes later belongs to completion_ids, with mask_T False where the policy did not choose it"
        require(rollout.prompt_ids == prompts[rollout.prompt_id], config, rule, f"{where}: {rollout.prompt_ids}", fix)
        count = len(rollout.completion_ids)
        rule = "an episode stays within sampling.max_tokens"
        fix = "divide the budget over the turns, tool output included"
        require(0 < count <= SAMPLING.max_tokens, config, rule, f"{where}: {count} of {SAMPLING.max_tokens}", fix)
        rule, fix = "logprobs are finite", "use 0.0 where mask_T is False"
        require(bool(np.isfinite(rollout.logprobs_T).all()), config, rule, f"{where}: {rollout.logprobs_T}", fix)
        mask = rollout.mask_T
        rule = "mask_T is as long as the completion and True somewhere"
        require(mask is None or (len(mask) == count and bool(np.any(mask))), config, rule, f"{where}: {mask}")
        rule, fix = "info holds JSON values only", "use strings, numbers, booleans, None, lists and mappings of these"
        require(_is_json(rollout.info), config, rule, f"{where}: {rollout.info!r:.80}", fix)
        try:
            check_episode(rollout, SAMPLING.max_tokens, "the agent")
        except PluginError as error:
            require(
                False, config, "budget, mask, logprobs and turns agree", str(error), "see rlhf_core.rollouts.Rollout"
            )


def _same(a: Sequence[Rollout], b: Sequence[Rollout]) -> bool:
    def contents(rollouts: Sequence[Rollout]) -> list[Any]:
        return [(r.completion_ids, r.text, dict(r.info), r.segments) for r in rollouts]

    return contents(a) == contents(b)


def _is_json(info: Any) -> bool:
    try:
        return json.loads(json.dumps(dict(info), allow_nan=False)) == dict(info)
    except (TypeError, ValueError):
        return False

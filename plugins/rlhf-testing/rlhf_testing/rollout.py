"""Conformance of rollout engines, with a real policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams
from rlhf_testing.config import built, check_config
from rlhf_testing.report import left_alone, require
from rlhf_testing.rollout_weights import TOLERANCE, SampledRequests, check_weights, logprob_gap, publish
from rlhf_testing.samples import policy_context

SAMPLING = SamplingParams(max_tokens=12, temperature=1.5)


def check_rollout(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check a rollout engine: one rollout per request, in order, with the prompt, seed and version of its request;
    a completion depends on its prompt and seed alone; its logprobs are the policy's at the temperature; limits, stop
    strings and greedy decoding are kept; turns of a stream, if it has streams, are those of ``generate``; ``on_ended``
    adds up.

    An engine with ``update_weights`` is sent versions of other weights, and has to sample from the one asked for, raise
    for one that it was not sent, leave the tensors and the policy alone, and say with ``in_flight`` which version
    sampled which tokens; ``release_memory`` changes no completion. One without has to follow the policy. Takes some
    seconds.

    Args:
        ctx: passed to ``build``; None makes one with the built-in model. Logprobs and weights are checked where
            ``ctx.policy.model`` is a torch module; of one with adapters these alone are sent.
    """
    check_config(config, "rollout")
    ctx = ctx or policy_context()
    engine: Any = built(config, "rollout", ctx)
    generate = left_alone(config, engine.generate, "generate()", "requests")
    try:
        requests = make_requests(ctx.policy.tokenizer)
        publish(engine, ctx.policy.model)
        require(list(generate([], SAMPLING, 7)) == [], config, "no requests, no rollouts", "something else came")
        whole = list(generate(requests, SAMPLING, 7))
        check_answers(config, requests, whole)
        check_determinism(config, generate, requests, whole)
        check_logprobs(config, ctx.policy.model, whole)
        check_sampling(config, generate, requests, whole, ctx.policy.tokenizer)
        check_stream(config, engine, requests, whole)
        check_weights(config, engine, ctx.policy.model, SampledRequests(requests, SAMPLING, whole))
    finally:
        for _ in range(2 if callable(getattr(engine, "close", None)) else 0):
            engine.close()


def make_requests(tokenizer: Any) -> list[RolloutRequest]:
    """Prompts of different lengths, several seeds each, and one with a limit of its own."""
    prompts = [tuple(tokenizer.encode(text)) for text in ("What is 2 + 3?", "Say hello to the people here.", "Why?")]
    rows = [(p, g) for p in range(len(prompts)) for g in range(4)]
    requests = [RolloutRequest(f"kit/{p}", prompts[p], g, 1000 * p + g + 1) for p, g in rows]
    return [*requests[:-1], replace(requests[-1], max_tokens=3)]


def check_answers(config: ComponentConfig, requests: Sequence[RolloutRequest], rollouts: Sequence[Rollout]) -> None:
    got = [(r.prompt_id, r.group_index) if isinstance(r, Rollout) else type(r).__name__ for r in rollouts]
    wanted = [(r.prompt_id, r.group_index) for r in requests]
    require(got == wanted, config, "one Rollout per request, in order", f"{got} instead of {wanted}")
    for request, rollout in zip(requests, rollouts):
        where = f"{request.prompt_id}#{request.group_index}"
        came = (tuple(rollout.prompt_ids), rollout.seed, rollout.policy_version)
        rule = "a rollout has the prompt_ids and seed of its request, and the policy version of the call"
        require(came == (tuple(request.prompt_ids), request.seed, 7), config, rule, f"{where}: {came}")
        limit = min(SAMPLING.max_tokens, request.max_tokens or SAMPLING.max_tokens)
        count = len(rollout.completion_ids)
        rule = "max_tokens of the sampling and of the request are kept"
        require(0 < count <= limit, config, rule, f"{where}: {count} of {limit} tokens")
        rule, seen = "finish_reason is LENGTH only where max_tokens was reached", f"{where}: {count} of {limit} tokens"
        require((rollout.finish_reason is not FinishReason.LENGTH) or count == limit, config, rule, seen)
        finite = bool(np.isfinite(rollout.logprobs_T).all() and (rollout.logprobs_T <= 1e-3).all())
        require(finite, config, "logprobs are finite and not above 0", f"{where}: {rollout.logprobs_T}")


def check_determinism(
    config: ComponentConfig, generate: Any, requests: Sequence[RolloutRequest], whole: Sequence[Rollout]
) -> None:
    """A prompt and a seed decide a completion."""
    again = [r.completion_ids for r in generate(requests, SAMPLING, 7)]
    rule = "the same seeds give the same completions"
    require(again == [r.completion_ids for r in whole], config, rule, "two calls differ", "draw from request.seed only")
    for i in (0, len(requests) - 2):
        alone = generate([requests[i]], SAMPLING, 7)[0].completion_ids
        seen = f"request {i} alone gives {alone}, among others {whole[i].completion_ids}"
        require(alone == whole[i].completion_ids, config, "a completion does not depend on its neighbours", seen)
    different = {(r.prompt_id, r.completion_ids) for r in whole[:-1]}
    holds, rule = len(different) > len({r.prompt_id for r in whole}), "different seeds give different completions"
    require(holds, config, rule, f"{len(whole) - 1} seeds gave {len(different)} completions")


def check_logprobs(config: ComponentConfig, model: Any, rollouts: Sequence[Rollout]) -> None:
    """The engine's logprobs are those that a trainer computes."""
    if not isinstance(model, torch.nn.Module):
        return
    for rollout in rollouts:
        gap = logprob_gap(model, [rollout], SAMPLING.temperature)
        seen = f"{rollout.prompt_id}#{rollout.group_index}: up to {gap:.3f} nats apart"
        fix = "log_softmax(logits / temperature) over the whole vocabulary, of the sampled token"
        require(gap <= TOLERANCE, config, "logprobs are those of the policy at the sampling temperature", seen, fix)


def check_sampling(
    config: ComponentConfig, generate: Any, requests: Sequence[RolloutRequest], whole: Sequence[Rollout], tokenizer: Any
) -> None:
    """Greedy decoding, stop strings, and texts."""
    same_prompt = [replace(requests[0], seed=seed) for seed in (1, 2)]
    greedy = [r.completion_ids for r in generate(same_prompt, replace(SAMPLING, temperature=0.0), 7)]
    require(greedy[0] == greedy[1], config, "temperature 0 takes the most likely tokens", f"two seeds gave {greedy}")
    for rollout in whole:
        text = tokenizer.decode(list(rollout.completion_ids), skip_special_tokens=True)
        rule = "text is the decoded completion without special tokens"
        require(rollout.text == text, config, rule, f"{rollout.text!r} instead of {text!r}")
    at = max(range(len(requests) - 1), key=lambda i: len(whole[i].text))
    stop = whole[at].text[1:3]
    if stop.strip():
        stopped = generate([requests[at]], replace(SAMPLING, stop=(stop,)), 7)[0]
        rule = "a completion ends where a stop string is complete, which is kept, with finish_reason STOP"
        seen = f"stop {stop!r}: {stopped.text!r}, {stopped.finish_reason}"
        require(stop in stopped.text and stopped.finish_reason is FinishReason.STOP, config, rule, seen)


def check_stream(
    config: ComponentConfig, engine: Any, requests: Sequence[RolloutRequest], whole: Sequence[Rollout]
) -> None:
    """Turns that are sampled as they come are those of single calls, also where a context continues an earlier one."""
    opens = getattr(engine, "open_stream", None)
    stream = None if opens is None else opens(SAMPLING, 7)
    if stream is None:
        return
    rule = "a turn of a stream is the one that generate() samples for its request"
    try:
        first = _turns(config, stream, dict(enumerate(requests)))
        for n, want in enumerate(whole):
            _same_turn(config, rule, n, first[n], want)
        stream.forget(1)
        longer = {
            n: replace(requests[n], prompt_ids=(*whole[n].prompt_ids, *whole[n].completion_ids, *whole[0].prompt_ids))
            for n in (0, 1)
        }
        again = _turns(config, stream, longer)
        for n, want in zip(longer, engine.generate(list(longer.values()), SAMPLING, 7), strict=True):
            _same_turn(config, rule + ", after an earlier turn of its episode", n, again[n], want)
    finally:
        for _ in range(2):
            stream.close()


def _turns(config: ComponentConfig, stream: Any, requests: dict[int, RolloutRequest]) -> dict[Any, Rollout]:
    """Submit all, and take until all have ended."""
    for n, request in requests.items():
        stream.submit(n, request)
    taken: dict[Any, Rollout] = {}
    while set(taken) != set(requests):
        count = len(requests) - len(taken)
        require(stream.waiting == count, config, "waiting counts turns not taken", f"{stream.waiting} of {count}")
        rows = stream.take()
        fresh = {n for n, _ in rows} - set(taken)
        require(
            len(fresh) == len(rows) > 0, config, "take() gives turns under way, each once, at least one", f"{rows!r}"
        )
        taken |= rows
    require(stream.waiting == 0, config, "waiting counts turns not taken", f"{stream.waiting} of 0")
    return taken


def _same_turn(config: ComponentConfig, rule: str, n: int, got: Rollout, want: Rollout) -> None:
    """Tokens, context, seed and version."""
    rows = [(r.completion_ids, tuple(r.prompt_ids), r.seed, r.policy_version) for r in (got, want)]
    require(rows[0] == rows[1], config, rule, f"request {n}: {rows[0]} instead of {rows[1]}")

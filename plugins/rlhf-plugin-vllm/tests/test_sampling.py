"""Completions by way of servers are those that the native engine samples, seed by seed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import BuildContext, ConfigError, RlhfError
from rlhf_core.models import ModelError
from rlhf_core.models.layers.trunk_and_head import mask_ids_without_text
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.checks import never_sampled
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_testing import check_rollout

SAMPLING = SamplingParams(max_tokens=10, temperature=0.7, top_k=50)


def requests_of(ctx: BuildContext, count: int = 6) -> list[RolloutRequest]:
    encode = ctx.policy.tokenizer.encode
    return [RolloutRequest(f"p{n}", tuple(encode(f"What is {n} + {n}?")), n, 70 + n) for n in range(count)]


def test_runs_that_sample_ahead_keep_no_copy_of_the_policy_for_it() -> None:
    from rlhf_core.training.weight_sync import keeps_own_weights

    assert keeps_own_weights(VllmConfig(urls=("http://127.0.0.1:1",)))


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_engine_conforms(in_flight: bool, serve: Callable[..., Any]) -> None:
    check_rollout(VllmConfig(urls=(serve().url,), in_flight=in_flight))


@pytest.mark.slow
def test_completions_are_the_native_engines_in_order(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any]
) -> None:
    servers, ended = [serve(), serve()], []
    engine = engine_of(*servers)
    requests = [*requests_of(ctx), replace(requests_of(ctx, 1)[0], max_tokens=2)]
    sampling = replace(SAMPLING, stop=(" is",))
    engine.on_ended = ended.append
    rollouts = engine.generate(requests, sampling, 0)
    native = NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context)
    for got, want in zip(rollouts, native.generate(requests, sampling, 0), strict=True):
        assert (got.completion_ids, got.finish_reason, got.text, got.seed, got.prompt_id) == (
            want.completion_ids,
            want.finish_reason,
            want.text,
            want.seed,
            want.prompt_id,
        )
        np.testing.assert_allclose(got.logprobs_T, want.logprobs_T, atol=1e-5)
    assert sum(ended) == len(requests)
    shares = [sum(path.endswith("generate") for path in s.calls) - 1 - len(engine.canary.requests) for s in servers]
    assert shares == [4, 3], "the place in the batch decides who answers"


def test_sampling_that_means_something_else_there_is_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any]
) -> None:
    engine = engine_of(serve())
    for params in (
        SamplingParams(min_tokens=2),
        SamplingParams(min_p=0.1, top_p=0.9),
        SamplingParams(temperature=0.001),
        SamplingParams(temperature=2.5),
    ):
        with pytest.raises(ConfigError, match="cannot be used with vLLM"):
            engine.generate(requests_of(ctx), params, 0)
    with pytest.raises(ConfigError, match="max_tokens"):
        engine.generate(requests_of(ctx), SamplingParams(max_tokens=4000), 0)


@pytest.mark.slow
def test_a_completion_of_other_weights_is_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any]
) -> None:
    server = serve()
    engine = engine_of(server, retries=0)
    server.weights = "somebody:3"
    with pytest.raises(RlhfError, match="sampled from 'somebody:3' instead of version 0"):
        engine.generate(requests_of(ctx), SAMPLING, 0)
    with pytest.raises(RlhfError, match="asked for version 1 of the policy and sent version 0"):
        engine.generate(requests_of(ctx), SAMPLING, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": []}, "0 tokens"),
        ({"finish_reason": "abort"}, "abort"),
        ({"logprobs": None}, "did not answer with a completion"),
        (
            {"finish_reason": "stop", "token_ids": [9], "logprobs": {"content": [{"token_id": 9, "logprob": -1.0}]}},
            "ends",
        ),
    ],
)
def test_answers_that_are_no_completion_are_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any], change: Any, words: str
) -> None:
    server = serve()
    engine = engine_of(server)
    whole = server.answer("/inference/v1/generate", engine._body(requests_of(ctx)[0], SAMPLING, engine.files.current))
    whole["choices"][0] |= {"stop_reason": None, **change}
    server.fault = lambda path, body: whole if path.endswith("generate") else None
    with pytest.raises(RlhfError, match=words):
        engine.generate(requests_of(ctx, 1), SAMPLING, 0)


@pytest.mark.slow
def test_ids_without_a_text_are_never_asked_for(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., Any]
) -> None:
    policy = replace(ctx.policy, model=copy.deepcopy(ctx.policy.model))
    rows = int(policy.model.get_output_embeddings().weight.shape[0])
    mask_ids_without_text(policy.model, range(rows - 3))
    bodies: list[Any] = []
    server = serve(policy, fault=lambda path, body: bodies.append(body) if path.endswith("generate") else None)
    engine = engine_of(server, context=replace(ctx, policy=policy))
    rollouts = engine.generate(requests_of(ctx), replace(SAMPLING, top_k=0), 0)
    native = NativeEngine(policy.model, policy.tokenizer, policy.context)
    for got, want in zip(rollouts, native.generate(requests_of(ctx), replace(SAMPLING, top_k=0), 0), strict=True):
        np.testing.assert_allclose(got.logprobs_T, want.logprobs_T, atol=1e-5)
    asked = [body["sampling_params"] for body in bodies if "logprobs" in body["sampling_params"]]
    assert asked
    assert all(params["logit_bias"] == {str(i): -100.0 for i in range(rows - 3, rows)} for params in asked)


def test_more_ids_than_a_request_can_name_are_refused() -> None:
    assert never_sampled([7, 8]) == [7, 8]
    with pytest.raises(
        ModelError, match="1025 ids of the model stand for no text, and vLLM can be kept from sampling 1024"
    ):
        never_sampled(range(1025))

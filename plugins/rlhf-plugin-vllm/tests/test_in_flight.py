"""Weights that come while completions are sampled: who sampled which token is known, and each logprob is its own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.models import LoadedModel
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_vllm.engine import VllmEngine
from tests.waiting import wait_for

SAMPLING = SamplingParams(max_tokens=6, temperature=2.0)
LIMIT = 1e-4


def requests_of(ctx: BuildContext, count: int = 4) -> list[RolloutRequest]:
    encode = ctx.policy.tokenizer.encode
    return [RolloutRequest(f"p{n}", tuple(encode(f"What is {n} + {n}?")), n, 70 + n) for n in range(count)]


def weights_of(model: Any, scale: float = 1.0) -> dict[str, Any]:
    return {n: p.detach().clone() * scale for n, p in model.named_parameters() if p.requires_grad}


def gaps(model: Any, weights: Any, rollout: Rollout) -> torch.Tensor:
    """Difference of each token's logprob from the trainer's with some weights, ``[T]``."""
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
    with torch.no_grad():
        output = torch.func.functional_call(model, weights, (ids,), {"use_cache": False})
    logits_TV = output.logits[0, len(rollout.prompt_ids) - 1 : -1] / SAMPLING.temperature
    own_T = torch.log_softmax(logits_TV, -1).gather(-1, ids[0, len(rollout.prompt_ids) :, None])[:, 0]
    return (own_T - torch.tensor(rollout.logprobs_T)).abs()


class Sampling:
    """Requests of an engine in a thread of their own, each of which waits once, at its half, for new weights."""

    def __init__(
        self, engine: VllmEngine, servers: list[Any], requests: list[RolloutRequest], version: int = 0
    ) -> None:
        self.waiting: set[int] = set()
        for server in servers:
            server.hold = self._hold
        self._pool = ThreadPoolExecutor(1)
        self.seeds = {r.seed for r in requests}
        self.rollouts: Future[list[Rollout]] = self._pool.submit(engine.generate, requests, SAMPLING, version)
        wait_for(lambda: self.waiting == self.seeds, "every request at its half")

    def _hold(self, body: Any) -> float:
        seed = body["sampling_params"]["seed"]
        if seed not in self.seeds or seed in self.waiting:  # later requests, and those that are sent elsewhere
            return 0.0
        self.waiting.add(seed)
        return 30.0

    def result(self) -> list[Rollout]:
        try:
            return self.rollouts.result(60)
        finally:
            self._pool.shutdown()


@pytest.mark.slow
def test_each_token_has_the_logprob_of_the_weights_that_sampled_it(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    engine, model = engine_of(*servers, in_flight=True), ctx.policy.model
    weights = {0: weights_of(model), 1: weights_of(model, 1.3)}
    sampling = Sampling(engine, servers, requests_of(ctx))
    engine.update_weights(1, weights[1])
    rollouts = sampling.result()
    for rollout in rollouts:
        assert rollout.policy_version == 0
        assert [v.version for v in rollout.versions] == [0, 1]
        for span in rollout.versions:
            own, other = (gaps(model, weights[v], rollout)[slice(*span.span)] for v in (span.version, 1 - span.version))
            assert own.max() < LIMIT < other.max()
    assert max(len(r.completion_ids) for r in rollouts) == 6, "the limit is that of the whole completion"
    assert engine._report["vllm"]["in_flight"] == {"completions": 4, "of_several_versions": 4}
    later = engine.generate(requests_of(ctx), SAMPLING, 0)
    assert {(r.policy_version, len(r.versions)) for r in later} == {(1, 1)}, "asked for an older version"


@pytest.mark.slow
def test_without_the_setting_completions_of_other_versions_are_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    engine = engine_of(serve())
    engine.update_weights(1, weights_of(ctx.policy.model, 1.1))
    with pytest.raises(RlhfError, match="asked for version 0 of the policy and sent version 1"):
        engine.generate(requests_of(ctx), SAMPLING, 0)
    assert engine.generate(requests_of(ctx), SAMPLING, 1)[0].versions == ()
    assert "in_flight" not in engine._report["vllm"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([{"version": "{run}:0", "start": 0, "end": 4}], "do not cover its 6 tokens"),
        ([{"version": "{run}:1", "start": 0, "end": 4}, {"version": "{run}:0", "start": 4, "end": 6}], "do not rise"),
        ([{"version": "somebody:3", "start": 0, "end": 6}], "sampled from 'somebody:3' instead of version 0"),
        ([{"version": "{run}:0"}], "does not say which weights"),
    ],
)
def test_versions_that_cannot_be_are_refused(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine], spans: Any, words: str
) -> None:
    server = serve()
    engine = engine_of(server, in_flight=True, retries=0)
    whole = server.answer("/inference/v1/generate", engine._body(requests_of(ctx)[0], SAMPLING, engine.files.current))
    rows = [{**s, "version": s["version"].format(run=engine.files.token)} for s in spans]
    whole["choices"][0]["weight_versions"] = rows
    server.fault = lambda path, body: whole if path.endswith("generate") else None
    with pytest.raises((RlhfError, ValueError), match=words):
        engine.generate(requests_of(ctx, 1), SAMPLING, 0)


@pytest.mark.slow
def test_what_a_server_owes_that_dies_in_the_update_is_sampled_elsewhere(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    engine, model = engine_of(*servers, in_flight=True, retries=0), ctx.policy.model
    sampling = Sampling(engine, servers, requests_of(ctx))
    servers[1].fault = lambda path, body: 500 if path == "/collective_rpc" else None
    weights = {0: weights_of(model), 1: weights_of(model, 1.3)}
    engine.update_weights(1, weights[1])
    rollouts = sampling.result()
    assert [[v.version for v in r.versions] for r in rollouts] == [[0, 1], [1], [0, 1], [1]]
    for rollout in rollouts:
        assert all(gaps(model, weights[v.version], rollout)[slice(*v.span)].max() < LIMIT for v in rollout.versions)
    assert [bool(r.out) for r in engine.fleet.replicas] == [False, True]


@pytest.mark.slow
def test_a_server_that_keeps_keys_and_values_of_the_old_weights_is_taken_out(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    engine = engine_of(*servers, in_flight=True, retries=0)
    servers[1].fault = lambda path, body: {"success": False} if path == "/reset_prefix_cache" else None
    engine.update_weights(1, weights_of(ctx.policy.model, 1.1))
    assert [bool(r.out) for r in engine.fleet.replicas] == [False, True]


@pytest.mark.slow
def test_a_server_that_comes_back_is_asked_for_nothing_before_it_has_the_weights(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    """Another thread asks meanwhile."""
    servers = [serve(), serve()]
    engine = engine_of(*servers, in_flight=True)
    engine.fleet._take_out(engine.fleet.replicas[1], "of the test")
    loading, go_on = threading.Event(), threading.Event()

    def slow(path: str, body: Any) -> None:
        if path == "/collective_rpc":
            loading.set()
            go_on.wait(30)

    servers[1].fault = slow
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(engine.update_weights, 1, weights_of(ctx.policy.model, 1.1))
        assert loading.wait(30)
        rollouts = engine.generate(requests_of(ctx), SAMPLING, 0)
        go_on.set()
        update.result(60)
    assert {r.versions[-1].version for r in rollouts} == {1}
    assert "/inference/v1/generate" not in servers[1].calls[: servers[1].calls.index("rlhf_load")][-5:]
    assert engine.fleet.counts == {"taken_out": 1, "brought_back": 1}


@pytest.mark.slow
def test_one_fault_of_an_update_takes_a_server_out_once(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    """The requests that it cut fail after it is back."""
    server = serve()
    engine = engine_of(server, in_flight=True, retries=1)
    sampling = Sampling(engine, [server], requests_of(ctx))
    failed: list[str] = []

    def once(path: str, body: Any) -> int | None:
        return failed.append(path) or 500 if path == "/collective_rpc" and not failed else None

    server.fault = once
    server.hold = lambda body: 0.0
    engine.update_weights(1, weights_of(ctx.policy.model, 1.1))
    assert {r.versions[-1].version for r in sampling.result()} == {1}
    assert engine.fleet.counts == {"taken_out": 1, "brought_back": 1}


@pytest.mark.slow
def test_a_canary_that_fails_on_a_server_that_comes_back_is_no_endless_wait(
    ctx: BuildContext,
    serve: Callable[..., Any],
    engine_of: Callable[..., VllmEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlhf_plugin_vllm.fleet.RETRY_S", 0.1)
    engine = engine_of(serve(), in_flight=True, retries=2)
    check, calls = engine.fleet.check, list[int]()

    def wrong_once(replica: Any, published: Any) -> None:
        calls.append(published.version)
        if len(calls) == 1:
            raise RlhfError("it has other weights")
        check(replica, published)

    engine.fleet.check = wrong_once
    engine.fleet._take_out(engine.fleet.replicas[0], "of the test")
    with pytest.raises(RlhfError, match="it has other weights"):
        engine.generate(requests_of(ctx), SAMPLING, 0)
    assert engine.fleet.live == []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engine.update_weights, 1, weights_of(ctx.policy.model, 1.1)).result(60)
    assert calls == [0, 1]
    assert engine.fleet.retries_left == 0


@pytest.mark.slow
def test_a_server_that_comes_back_is_compared_with_the_version_that_it_was_given(
    ctx: BuildContext,
    serve: Callable[..., Any],
    engine_of: Callable[..., VllmEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version is being published meanwhile."""
    monkeypatch.setattr("rlhf_plugin_vllm.fleet.RETRY_S", 1.0)
    engine, calls = engine_of(serve(), in_flight=True, retries=2), list[int]()
    check = engine.fleet.check

    def slow(replica: Any, published: Any) -> None:
        calls.append(published.version)
        wait_for(lambda: published.version or engine._sent is not None, "the next version")
        check(replica, published)

    engine.fleet.check = slow
    engine.fleet._take_out(engine.fleet.replicas[0], "of the test")
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(engine.generate, requests_of(ctx), SAMPLING, 0)
        wait_for(lambda: calls, "the check")
        pool.submit(engine.update_weights, 1, weights_of(ctx.policy.model, 1.3)).result(60)
        asked.result(60)
    assert calls == [0, 1]


@pytest.mark.slow
def test_adapters_are_renewed_under_completions(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    model: Any = get_peft_model(copy.deepcopy(ctx.policy.model), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    policy = LoadedModel(model, ctx.policy.tokenizer, ctx.policy.source, ctx.policy.context)
    server = serve(policy, lora_rank=8)
    engine = engine_of(server, context=ctx.with_(policy=policy), in_flight=True)
    weights = {0: weights_of(model), 1: {n: t + 0.1 for n, t in weights_of(model).items()}}
    sampling = Sampling(engine, [server], requests_of(ctx))
    engine.update_weights(1, weights[1])
    for rollout in sampling.result():
        assert [v.version for v in rollout.versions] == [0, 1]
        for span in rollout.versions:
            assert gaps(model, weights[span.version], rollout)[slice(*span.span)].max() < LIMIT
    assert server.calls.count("/v1/load_lora_adapter") == 1, "requests name the adapter that they began with"
    assert server.calls.count("rlhf_renew_adapter") == 1

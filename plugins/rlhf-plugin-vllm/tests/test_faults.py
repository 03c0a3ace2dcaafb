"""Servers that die, hang or fail: what they owe goes elsewhere, and is the same there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.engine import VllmEngine

SAMPLING = SamplingParams(max_tokens=3)


def weights_of(model: Any, scale: float = 1.0) -> dict[str, Any]:
    return {n: p.detach().clone() * scale for n, p in model.named_parameters()}


def requests_of(ctx: BuildContext) -> list[RolloutRequest]:
    encode = ctx.policy.tokenizer.encode
    return [RolloutRequest(f"p{n}", tuple(encode(f"What is {n} + 1?")), 0, n) for n in range(4)]


def dies(path: str, _: Any) -> Any:
    return 500 if path.endswith("generate") else None


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are out are tried again at once."""
    monkeypatch.setattr("rlhf_plugin_vllm.fleet.RETRY_S", 0.01)


def hangs(path: str, _: Any) -> Any:
    if path.endswith("generate"):
        time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [dies, hangs])
def test_the_requests_of_a_server_that_fails_go_to_others_with_the_same_result(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine], fault: Any
) -> None:
    servers = [serve(), serve()]
    engine = engine_of(*servers, retries=0)
    late = engine.fleet.replicas[1]
    late.config = late.config.model_copy(update={"request_s": 0.5})
    native = NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context)
    undisturbed = [r.completion_ids for r in native.generate(requests_of(ctx), SAMPLING, 0)]
    servers[1].fault = fault
    assert [r.completion_ids for r in engine.generate(requests_of(ctx), SAMPLING, 0)] == undisturbed
    assert [bool(r.out) for r in engine.fleet.replicas] == [False, True]
    calls = len(servers[1].calls)
    engine.generate(requests_of(ctx), SAMPLING, 0)
    assert len(servers[1].calls) == calls, "it is asked for nothing more"


@pytest.mark.slow
def test_a_server_that_comes_back_serves_after_the_current_version_and_its_canary(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    engine = engine_of(*servers)
    servers[1].fault = dies
    engine.generate(requests_of(ctx), SAMPLING, 0)
    servers[1].fault, servers[1].calls = None, []
    engine.update_weights(1, weights_of(ctx.policy.model, 1.1))
    assert not any(r.out for r in engine.fleet.replicas)
    calls = servers[1].calls
    assert calls.index("rlhf_load") < calls.index("/inference/v1/generate")
    assert engine.fleet.counts == {"taken_out": 1, "brought_back": 1}


@pytest.mark.slow
def test_a_server_that_fails_an_update_serves_nothing_until_it_has_the_weights(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    engine = engine_of(*servers, retries=0)
    servers[0].fault = lambda path, body: 500 if path == "/collective_rpc" else None
    engine.update_weights(1, weights_of(ctx.policy.model, 1.1))
    assert (servers[0].weights, servers[0].paused) == ("updating", True)
    assert all(r.policy_version == 1 for r in engine.generate(requests_of(ctx), SAMPLING, 1))


@pytest.mark.slow
def test_when_no_server_is_left_the_run_says_so_within_its_retries(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    server = serve()
    engine = engine_of(server, retries=2)
    server.fault = lambda path, body: 503
    with pytest.raises(RlhfError, match="no vLLM server is left") as caught:
        engine.generate(requests_of(ctx), SAMPLING, 0)
    assert server.url in str(caught.value)
    assert caught.value.exit_code == 1
    assert engine.fleet.retries_left == 0, "all of them were used"


@pytest.mark.slow
def test_the_only_server_is_tried_again_with_the_weights_that_were_sent(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    server = serve()
    engine = engine_of(server)
    undisturbed = [r.completion_ids for r in engine.generate(requests_of(ctx), SAMPLING, 0)]
    failed: list[str] = []

    def once(path: str, _: Any) -> Any:
        if path.endswith("generate") and not failed:
            failed.append(path)
            return 500
        return None

    server.fault = once
    server.weights = "restarted"
    assert [r.completion_ids for r in engine.generate(requests_of(ctx), SAMPLING, 0)] == undisturbed

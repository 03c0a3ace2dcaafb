"""Each call may be repeated: an answer that is lost ends no run, and no server keeps other weights for it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from rlhf_core.config import BuildContext
from rlhf_core.models import LoadedModel
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_vllm.engine import VllmEngine

ALWAYS = ("pause", "update_weight_version", "reset_prefix_cache", "resume", "generate")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "lora", "in_flight", "calls"),
    [
        ("files", False, False, (*ALWAYS, "rlhf_load")),
        pytest.param(
            *("files", True, False, (*ALWAYS, "load_lora_adapter", "unload_lora_adapter")), marks=pytest.mark.long
        ),
        pytest.param("files", True, True, (*ALWAYS, "rlhf_renew_adapter"), marks=pytest.mark.long),
        ("gloo", False, False, ("rlhf_receive",)),
        ("gloo", True, True, ("rlhf_receive_adapter", "rlhf_renew_adapter")),
    ],
    ids=["all weights", "adapter", "adapter in flight", "all weights by gloo", "adapter by gloo"],
)
def test_each_call_of_an_update_may_lose_its_answer(
    transport: str,
    lora: bool,
    in_flight: bool,
    calls: tuple[str, ...],
    ctx: BuildContext,
    serve: Callable[..., Any],
    engine_of: Callable[..., VllmEngine],
    before: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlhf_plugin_vllm.fleet.RETRY_S", 0.01)
    if lora:
        base, target = ctx.policy, LoraConfig(r=4, target_modules=["q_proj"])
        model: Any = get_peft_model(copy.deepcopy(base.model), target)
        ctx = ctx.with_(policy=LoadedModel(model, base.tokenizer, base.source, base.context))
    server = serve(ctx.policy, lora_rank=8 if lora else 0)
    proxy = before(server)
    engine = engine_of(proxy, context=ctx, retries=len(calls) + 1, in_flight=in_flight, transport=transport)
    version = 0
    with caplog.at_level(logging.WARNING, "rlhf.vllm"):
        for version, call in enumerate(calls, 1):
            proxy.lose = [call, call] if version == 1 else [call]  # the second one while it is brought back
            engine.update_weights(version, moved(ctx, version))
    assert proxy.lost == [calls[0], *calls]
    assert engine.fleet.counts == {"taken_out": len(calls) + 1, "brought_back": len(calls)}
    assert "(0 left)" in caplog.text
    assert "(-1 left)" not in caplog.text
    assert len(server.adapters) == int(lora), "none of an earlier version is left"
    request = RolloutRequest("p", tuple(ctx.policy.tokenizer.encode("What is 4 + 4?")), 0, 5)
    assert engine.generate([request], SamplingParams(max_tokens=3), version)[0].policy_version == version


def moved(ctx: BuildContext, version: int) -> dict[str, Any]:
    return {n: p.detach() + 0.002 * version for n, p in ctx.policy.model.named_parameters() if p.requires_grad}

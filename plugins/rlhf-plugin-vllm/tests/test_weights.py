"""Weights reach the servers, and the canary sees when they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from rlhf_core.config import BuildContext, RlhfError, UserError
from rlhf_core.models import LoadedModel, ModelError
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.connect import save_base
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.weight_files import write_buckets
from rlhf_plugin_vllm.worker import checked_files, weights_in
from rlhf_testing import check_rollout, policy_context

GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


def weights_of(model: Any, scale: float = 1.0) -> dict[str, Any]:
    return {n: p.detach().clone() * scale for n, p in model.named_parameters() if p.requires_grad}


def request_of(ctx: BuildContext) -> list[RolloutRequest]:
    return [RolloutRequest("p", tuple(ctx.policy.tokenizer.encode("What is 4 + 4?")), 0, 5)]


@pytest.mark.slow
def test_a_version_reaches_every_server_and_its_file_goes(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    servers = [serve(), serve()]
    engine = engine_of(*servers)
    first = engine.files.current
    changed = weights_of(ctx.policy.model, 1.5)
    engine.update_weights(3, changed)
    for server in servers:
        assert torch.equal(dict(server.model.named_parameters())["model.norm.weight"], changed["model.norm.weight"])
        order = [c for c in server.calls if not c.endswith("generate")][-6:]
        assert order == [
            "/pause",
            "/update_weight_version",
            "rlhf_load",
            "/reset_prefix_cache",
            "/update_weight_version",
            "/resume",
        ]
    assert first is not None
    assert not first.path.exists()
    assert engine.generate(request_of(ctx), GREEDY, 3)[0].policy_version == 3
    assert engine._report["vllm"]["syncs"] == 2
    folder = engine.files.folder
    engine.close()
    assert not folder.exists()


def test_weights_go_in_files_of_a_bounded_size_that_are_read_one_at_a_time(ctx: BuildContext, tmp_path: Path) -> None:
    tensors = weights_of(ctx.policy.model)
    most = 200_000
    digest, size = write_buckets(tmp_path, tensors, most)
    files = checked_files(str(tmp_path), digest)
    assert size == sum(file.stat().st_size for file in files) > 10 * most
    large = [file for file in files if sum(t.nbytes for t in load_file(file).values()) > most]
    assert all(len(load_file(file)) == 1 for file in large), "one weight that is larger than a file has its own"
    read = dict(weights_in(files))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    rows = weights_in(files)
    next(rows)
    files[-1].unlink()
    with pytest.raises(FileNotFoundError):
        list(rows)


def test_a_file_that_the_trainer_did_not_write_is_found_before_a_weight_is_read(
    ctx: BuildContext, tmp_path: Path
) -> None:
    digest, _ = write_buckets(tmp_path, weights_of(ctx.policy.model), 200_000)
    last = sorted(tmp_path.glob("*.safetensors"))[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    with pytest.raises(RuntimeError, match=f"{last.name} is not the file that the trainer wrote"):
        checked_files(str(tmp_path), digest)
    (tmp_path / "digests.json").write_text("{}")
    with pytest.raises(RuntimeError, match="is not the folder that the trainer wrote"):
        checked_files(str(tmp_path), digest)


@pytest.mark.slow
def test_the_canary_stops_a_run_whose_weights_did_not_arrive(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    server = serve()
    engine = engine_of(server)
    server.fault = lambda path, body: {"results": []} if path == "/collective_rpc" else None
    with pytest.raises(RlhfError, match="has other weights than version 1") as caught:
        engine.update_weights(1, weights_of(ctx.policy.model, 1.1))
    assert caught.value.exit_code == 1


@pytest.mark.slow
def test_the_canary_compares_with_the_weights_that_were_sent_not_with_the_policy(
    serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    ctx = policy_context()
    engine = engine_of(serve())
    sent = weights_of(ctx.policy.model, 1.2)
    engine.update_weights(1, sent)
    assert 0 < engine._report["vllm"]["canary_largest"] < 1e-4
    assert not any(p.device.type != "meta" for p in engine.canary.skeleton.model.parameters()), (
        "no copy of trained weights"
    )


def lora_policy(policy: LoadedModel, rank: int = 4) -> LoadedModel:
    import copy

    model = get_peft_model(copy.deepcopy(policy.model), LoraConfig(r=rank, target_modules=["q_proj", "v_proj"]))
    return LoadedModel(model, policy.tokenizer, policy.source, policy.context)


@pytest.mark.slow
def test_under_lora_only_the_adapter_is_sent(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    policy = lora_policy(ctx.policy)
    server = serve(policy, lora_rank=8)
    engine = engine_of(server, context=ctx.with_(policy=policy))
    changed = {n: t + 0.1 for n, t in weights_of(policy.model).items()}
    engine.update_weights(1, changed)
    weights = sum(t.numel() * t.element_size() for t in changed.values())
    assert weights <= engine._report["vllm"]["sync_bytes"] < weights + 8192
    assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} <= set(server.calls)
    assert "rlhf_load" not in server.calls
    native = NativeEngine(server.model, policy.tokenizer, policy.context)
    got = engine.generate(request_of(ctx), GREEDY, 1)[0]
    assert got.completion_ids == native.generate(request_of(ctx), GREEDY, 1)[0].completion_ids
    server.adapter, server.adapters = None, set()  # as after a restart: the name of the adapter is unknown there
    assert engine.generate(request_of(ctx), GREEDY, 1)[0].completion_ids == got.completion_ids
    assert engine.fleet.counts == {"taken_out": 1, "brought_back": 1}


@pytest.mark.slow
def test_the_engine_conforms_under_lora(ctx: BuildContext, serve: Callable[..., Any]) -> None:
    policy = lora_policy(ctx.policy)
    check_rollout(VllmConfig(urls=(serve(policy, lora_rank=8).url,)), ctx.with_(policy=policy))


def test_servers_that_take_no_weights_are_bad_input(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    policy = lora_policy(ctx.policy)
    server = serve(policy, lora_rank=8)
    server.fault = lambda path, body: 404 if path == "/v1/load_lora_adapter" else None
    with pytest.raises(UserError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        engine_of(server, context=ctx.with_(policy=policy), retries=1)


def test_a_server_with_other_base_weights_is_bad_input_under_lora(
    ctx: BuildContext, serve: Callable[..., Any], engine_of: Callable[..., VllmEngine]
) -> None:
    policy = lora_policy(ctx.policy)
    server = serve(policy, lora_rank=8)
    with torch.no_grad():
        server.model.get_base_model().model.norm.weight.mul_(1.3)
    with pytest.raises(ModelError, match="other base weights") as caught:
        engine_of(server, context=ctx.with_(policy=policy))
    assert caught.value.exit_code == 2


def test_servers_start_with_the_base_model_without_adapters(ctx: BuildContext, tmp_path: Any) -> None:
    from transformers import AutoModelForCausalLM

    save_base(lora_policy(ctx.policy), tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    own = dict(ctx.policy.model.named_parameters())
    assert all(torch.equal(tensor, own[name]) for name, tensor in saved.named_parameters())

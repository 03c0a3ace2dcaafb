"""A base of 4 bits (QLoRA): vLLM holds what it stands for, and is sent the adapter alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlhf_core.config import BuildContext, ConfigError, UserError
from rlhf_core.models import LoadedModel, ModelConfig, load_policy
from rlhf_core.models.config import LoraSettings
from rlhf_core.models.four_bits import numbers
from rlhf_plugin_preflight.memory.engine import EngineFacts
from rlhf_plugin_preflight.memory.footprint import _facts
from rlhf_plugin_preflight.memory.unknown import without_values
from rlhf_plugin_preflight.memory.weightless import meta_model
from rlhf_plugin_vllm.checks import check_before_loading
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.connect import save_start
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.skeleton import Skeleton
from rlhf_plugin_vllm.weight_files import WeightFiles
from rlhf_testing import policy_context
from tests.families.conftest import saved as saved
from tests.families.conftest import tokenizer as tokenizer

from .conftest import sent_by_group, weights_of
from .test_real_vllm import PYTHON, SAMPLING, SERVER, requests_of, trainer_gap

pytest.importorskip("bitsandbytes")
WIDE = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32, "moe_intermediate_size": 64}
IDS = torch.tensor([[(7 * i) % 60 for i in range(20)]])
LORA = LoraSettings(r=4)


def policy_of(folder: Path) -> LoadedModel:
    return load_policy(ModelConfig(path=str(folder), prompt_format="raw", quantize="nf4", lora=LORA))


def move(model: Any, version: int) -> None:
    """Let adapters change the logits."""
    torch.manual_seed(version)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.05 * torch.randn_like(parameter))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_server_starts_with_the_numbers_that_the_trainer_computes_with(
    family: str, saved: Callable[..., Path], tmp_path: Path
) -> None:
    policy = policy_of(saved(family, **WIDE))
    files, file = WeightFiles(policy.model, None), tmp_path / "start" / "model.safetensors"
    assert not save_start(policy, tmp_path / "start", files), "it holds weights"
    files.close()
    (tmp_path / "start" / "00000.safetensors").rename(file)  # vLLM takes any name
    started: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "start").eval()
    assert not hasattr(started.config, "quantization_config")
    assert torch.allclose(logits(started), logits(policy.model), atol=1e-5)
    weight = policy.model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj.base_layer").weight
    assert torch.equal(load_file(file)["model.layers.0.self_attn.q_proj.weight"], numbers(weight))


def test_the_canary_computes_what_the_policy_does_a_unit_at_a_time(saved: Callable[..., Path]) -> None:
    model = policy_of(saved("llama", **WIDE)).model
    move(model, 0)
    weights, used = dict(model.named_parameters()), set[str]()
    skeleton = Skeleton(model)
    assert {p.device.type for p in skeleton.model.parameters()} == {"meta"}
    assert not any(hasattr(part, "quant_state") for part in skeleton.model.modules())

    def value(name: str) -> torch.Tensor:
        used.add(name)
        return numbers(weights[name]).detach()

    got = skeleton(value, torch.device("cpu"), torch.float32, IDS, use_cache=False).logits
    assert torch.allclose(got, logits(model), atol=1e-5)
    assert used == set(weights)


def test_servers_by_address_are_refused_before_they_are_asked() -> None:
    model = ModelConfig.model_validate({"quantize": "nf4", "lora": {"r": 4}})
    ctx: Any = SimpleNamespace(config=SimpleNamespace(model=model, trainer=None), world_size=1, rank=0)
    with pytest.raises(ConfigError, match=r"model\.quantize nf4 cannot be used with rollout\.urls"):
        check_before_loading(VllmConfig(urls=("http://127.0.0.1:1",)), ctx)


def facts_of(config: ModelConfig) -> EngineFacts:
    run = SimpleNamespace(model=config, trainer=None)
    run.with_precision = lambda: run
    ctx: Any = SimpleNamespace(config=run, world_size=1)
    sizes: Any = SimpleNamespace(prompts=(), group=1)
    with without_values():
        return _facts(ctx, meta_model(config), sizes, 1 << 30, on_cpu=True)


def test_the_plan_counts_the_servers_base_whole(saved: Callable[..., Path]) -> None:
    folder = str(saved("llama", **WIDE))
    assert facts_of(ModelConfig(path=folder, lora=LORA)) == facts_of(
        ModelConfig(path=folder, lora=LORA, quantize="nf4")
    )


def test_the_plan_counts_all_weights_where_adapters_of_experts_are_folded_in(saved: Callable[..., Path]) -> None:
    folder = str(saved("qwen3_moe", **WIDE))
    facts = facts_of(ModelConfig(path=folder, lora=LoraSettings(r=4, target_modules=("down_proj", "q_proj"))))
    assert not facts.lora
    assert facts.trained == facts.weights


@pytest.fixture
def ctx(saved: Callable[..., Path]) -> BuildContext:
    return policy_context().with_(policy=policy_of(saved("llama", max_position_embeddings=512, **WIDE)))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PYTHON, reason="RLHF_VLLM_PYTHON names no interpreter of an environment with vLLM")
def test_the_real_vllm_has_each_version_of_the_adapter_on_the_right_base(ctx: BuildContext) -> None:
    model = ctx.policy.model
    engine = VllmEngine(VllmConfig(**SERVER), ctx)
    try:
        for version in range(4):  # one from a file, three by gloo
            with sent_by_group(engine) if version else contextlib.nullcontext():
                engine.update_weights(version, weights_of(model))
            rollouts = engine.generate(requests_of(ctx, 3, 2), SAMPLING, version)
            assert trainer_gap(model, rollouts, 0.7) < 1e-4
            move(model, version)
        assert engine._report["vllm"]["canary_largest"] < 1e-4
        assert engine._report["vllm"]["sync_bytes"] < 100_000, "the adapter alone"
        assert engine.fleet.counts["taken_out"] == 0
    finally:
        engine.close()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PYTHON, reason="RLHF_VLLM_PYTHON names no interpreter of an environment with vLLM")
def test_the_canary_refuses_the_base_as_it_was_before_quantising(
    ctx: BuildContext, saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("llama", max_position_embeddings=512, **WIDE)

    def other(policy: Any, target: Path, files: WeightFiles) -> bool:
        load_policy(ModelConfig(path=str(folder))).save(target)
        return False

    monkeypatch.setattr("rlhf_plugin_vllm.connect.save_start", other)
    engine = VllmEngine(VllmConfig(**SERVER), ctx)
    try:
        with pytest.raises(UserError, match="has other weights than version 0"):
            engine.update_weights(0, weights_of(ctx.policy.model))
    finally:
        engine.close()

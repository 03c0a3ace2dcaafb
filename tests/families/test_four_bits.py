"""Adapters on weights of 4 bits: what is computed, written, planned and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from rlhf_core.cli.main import cli
from rlhf_core.config.load import validate
from rlhf_core.models.adapters import describe_trained
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.four_bits import numbers
from rlhf_core.models.load import load_policy
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import ConfigError, ModelError
from rlhf_plugin_preflight.memory.footprint import measure_model
from rlhf_plugin_preflight.memory.unknown import without_values
from rlhf_plugin_preflight.memory.weightless import meta_model

pytest.importorskip("bitsandbytes")
WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
"""Rows of whole blocks."""
IDS = torch.tensor([[(7 * i) % 60 for i in range(20)]])


def quantized(folder: Path, **lora: Any) -> ModelConfig:
    return ModelConfig(path=str(folder), quantize="nf4", lora=LoraSettings(r=4, **lora))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def test_passes_with_and_without_gradient_are_alike_and_the_final_model_is_the_policy(
    saved: Callable[..., Path], tmp_path: Path
) -> None:
    folder = saved("llama", tie_word_embeddings=False, **WIDE)
    policy = load_policy(quantized(folder))
    model, whole = policy.model, load_policy(ModelConfig(path=str(folder))).model
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, logits(model))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    packed = {n: numbers(p) for n, p in model.named_parameters() if hasattr(p, "quant_state")}
    share = f"of {sum(p.numel() for p in whole.parameters()) + trained:,} parameters"
    assert share in describe_trained(model), "two weights lie in a byte"
    assert len(packed) == 7 * whole.config.num_hidden_layers, "linear layers but the head"
    stored = whole.state_dict()
    for name, unpacked in packed.items():
        want = stored[name.removeprefix("base_model.model.").replace(".base_layer.", ".")]
        assert 0.02 < float((unpacked - want).norm() / want.norm()) < 0.15
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    want = logits(model)
    policy.save(tmp_path / "final", merge=True)
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "final").eval()
    assert not hasattr(final.config, "quantization_config")
    assert torch.allclose(logits(final), want, atol=1e-4)
    policy.save(tmp_path / "checkpoint")
    again = load_policy(quantized(folder))
    again.load_weights(tmp_path / "checkpoint")
    assert torch.equal(logits(again.model), want)


def test_the_memory_plan_counts_four_bits_and_scales(saved: Callable[..., Path]) -> None:
    config = quantized(saved("llama", **WIDE))
    model = load_policy(config).model
    held = 0
    for parameter in model.parameters():
        held += parameter.numel() * parameter.element_size()
        if (state := getattr(parameter, "quant_state", None)) is not None:
            held += state.absmax.numel() + 4 * state.state2.absmax.numel()
    with without_values():
        planned = sum(p.numel() * p.element_size() for p in meta_model(config).model.parameters())
    assert planned == held


def test_fsdp_divides_all_but_the_packed_weights_in_the_plan(saved: Callable[..., Path]) -> None:
    config = quantized(saved("llama", **WIDE))
    with without_values():
        size = measure_model(config, meta_model(config))
    assert 0 < size.packed < size.weights
    assert not size.by_parts, "it is read whole"
    words = ["memory", "plan", "--algo", "sft", "--dataset", "pocket/assistant", "--model", config.path, "--json"]
    words += ["--set", "model.quantize=nf4", "--set", "model.lora.r=4", "--strategy", "fsdp", "--ranks", "2"]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    held = json.loads(result.stdout)["phases"]["update"]["parts"]["weights"]
    assert held == pytest.approx(size.packed + (size.weights - size.packed) / 2, abs=1)


def test_rows_that_are_not_whole_blocks_are_refused_on_a_cpu() -> None:
    with pytest.raises(ModelError, match="q_proj' is 160 wide"):
        load_policy(ModelConfig(path="pocket", quantize="nf4", lora=LoraSettings(r=4)))


def test_without_adapters_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.quantize nf4 without model\.lora"):
        ModelConfig.from_settings({"path": "pocket", "quantize": "nf4"})


def test_without_bitsandbytes_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_core.models.four_bits.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="needs bitsandbytes"):
        load_policy(ModelConfig(path="pocket", quantize="nf4", lora=LoraSettings(r=4)))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"strategy": "deepspeed", "model": {"quantize": "nf4", "lora": {}}}, "strategy deepspeed cannot divide"),
        ({"rollout": "vllm", "model": {"lora": {"dora": True}}}, "model.lora.dora True cannot be used with vLLM"),
        ({"model": {"lora": {"dropout": 0.1}}}, "model.lora.dropout 0.1 cannot be used with algorithm 'grpo'"),
    ],
)
def test_what_cannot_be_divided_or_sent_is_refused_by_name(sections: dict[str, Any], message: str) -> None:
    registry = Registry(disabled=())
    data = {"name": "pocket/arithmetic"}
    settings = {"trainer": "grpo", "reward": "verifier", "dataset": data, **sections}
    config = validate(registry, {**settings, "trainer": {"name": "grpo"}})
    ctx = BuildContext(config=config, registry=registry, seed=0, world_size=2)
    with pytest.raises(ConfigError, match=message):
        _ = [component.preflight(ctx) for _, component in config.components()]

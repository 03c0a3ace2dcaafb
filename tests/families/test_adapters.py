"""LoRA on every family: what it trains, and that the final model is the trained policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core.models.adapters import check_merged, describe_trained, trained_parts
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.save import add_lora, merged_weights
from rlhf_core.types.errors import ModelError
from tests.families.built import FAMILIES, build

IDS = torch.tensor([[(5 * i) % 200 for i in range(40)]])
MIXTURES = ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "deepseek_v2")
ATTENTION = ["k_proj", "o_proj", "q_proj", "v_proj"]
TRAINED = {
    "qwen2_moe": [*ATTENTION, "down_proj", "gate_proj", "up_proj"],
    "deepseek_v2": ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_proj"],
}
"""``all-linear``; attention of the others."""


def shaken(model: Any) -> None:
    """Adapters as if they had been trained."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def final_equals_policy(folder: Path, out: Path, **lora: Any) -> Any:
    policy = load_policy(ModelConfig(path=str(folder), lora=LoraSettings(r=4, alpha=8, **lora)))
    start = logits(policy.model)
    shaken(policy.model)
    policy.save(out, merge=True)
    want = logits(policy.model)
    assert (want - start).abs().max() > 0.01, "the adapters do something"
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(out).eval()), want, atol=1e-4)
    again = load_policy(ModelConfig(path=str(out / "adapter")))
    assert torch.allclose(logits(again.model), want, atol=1e-4)
    return policy.model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_final_model_is_the_policy(family: str, saved: Callable[..., Path], tmp_path: Path) -> None:
    final_equals_policy(saved(family), tmp_path / "final")


@pytest.mark.parametrize("family", MIXTURES)
def test_a_mixture_says_what_is_trained_and_leaves_the_router(family: str, saved: Callable[..., Path]) -> None:
    model = load_policy(ModelConfig(path=str(saved(family)), lora=LoraSettings(r=4))).model
    parts = trained_parts(model)
    assert sorted(parts) == sorted(TRAINED.get(family, ATTENTION))
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    told = describe_trained(model)
    assert all(part in told for part in parts)
    assert told.startswith(f"trained: {sum(parts.values()):,} of ")


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("mixtral", ("w1", "w2", "w3", "gate")),
        ("qwen3_moe", ("q_proj", "gate_proj", "up_proj", "down_proj")),
        ("olmoe", ("gate", "q_proj")),
    ],
)
def test_experts_and_router_are_trained_where_they_are_named(
    family: str, names: tuple[str, ...], saved: Callable[..., Path], tmp_path: Path
) -> None:
    model = final_equals_policy(saved(family), tmp_path / "final", target_modules=names)
    parts = trained_parts(model)
    assert any("expert" in p or "gate" in p for p in parts), parts
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "bloom", "opt"])
@pytest.mark.parametrize("which", ["both", "embedding", "head"])
def test_adapters_on_a_matrix_that_is_used_twice_are_refused(family: str, which: str) -> None:
    model = build(family, tie_word_embeddings=True)
    names = {m: n.rsplit(".", 1)[-1] for n, m in model.named_modules()}
    ends = [names[model.get_input_embeddings()], names[model.get_output_embeddings()]]
    chosen = {"both": ends, "embedding": ends[:1], "head": ends[1:]}[which]
    with pytest.raises(ModelError, match="is the same matrix") as caught:
        add_lora(model, LoraSettings(r=4, target_modules=tuple(chosen)))
    assert "leave it out" in caught.value.fix


def test_adapters_on_untied_ends_are_merged(saved: Callable[..., Path], tmp_path: Path) -> None:
    folder = saved("llama", tie_word_embeddings=False)
    final_equals_policy(folder, tmp_path / "final", target_modules=("embed_tokens", "lm_head", "q_proj"))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "lora",
    [{"rslora": True}, {"dora": True}, {"dropout": 0.5}, {"modules_to_save": ("lm_head",)}],
    ids=["rslora", "dora", "dropout", "modules_to_save"],
)
def test_every_kind_of_adapter_is_folded_in(
    family: str, lora: dict[str, Any], saved: Callable[..., Path], tmp_path: Path
) -> None:
    model = final_equals_policy(saved(family, tie_word_embeddings=False), tmp_path / "final", **lora)
    assert "lm_head" in trained_parts(model) or "modules_to_save" not in lora
    scale = next(m.scaling["default"] for m in model.modules() if hasattr(m, "lora_A"))
    assert scale == (4.0 if "rslora" in lora else 2.0)


def test_adapters_drop_their_input_only_where_there_is_a_gradient() -> None:
    model = add_lora(build("llama"), LoraSettings(r=4, dropout=0.5)).eval()
    shaken(model)
    assert torch.equal(logits(model), logits(model))
    one, other = (model(input_ids=IDS, use_cache=False).logits for _ in range(2))
    assert not torch.equal(one, other)
    with model.disable_adapter():
        assert torch.equal(model(input_ids=IDS, use_cache=False).logits, logits(model))


def test_a_module_to_save_that_is_tied_is_refused() -> None:
    with pytest.raises(ModelError, match="is the same matrix"):
        add_lora(build("llama", tie_word_embeddings=True), LoraSettings(r=4, modules_to_save=("lm_head",)))


def test_a_final_model_that_is_not_the_policy_is_not_written(tmp_path: Path) -> None:
    model = add_lora(build("llama"), LoraSettings(r=4))
    shaken(model)
    merged = dict(merged_weights(model, model.state_dict()))
    check_merged(model, merged)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ModelError, match="is not the policy: logits of one row differ"):
        check_merged(
            model,
            {**merged, name: model.state_dict()[f"base_model.model.{name}".replace(".weight", ".base_layer.weight")]},
        )
    with pytest.raises(ModelError, match=f"{name.replace('.weight', '.base_layer.weight')} would be missing"):
        check_merged(model, {n: w for n, w in merged.items() if n != name})

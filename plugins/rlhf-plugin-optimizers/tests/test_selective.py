"""``model.gradient_checkpointing=selective``: the same gradients, fewer bytes kept for the backward pass."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rlhf_core.models.config import LoraSettings
from rlhf_core.models.gradient_checkpointing import wake_checkpointing
from rlhf_core.models.save import add_lora
from rlhf_core.training.forward import completion_logprobs, structure

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6},
    "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "olmo2": {"num_key_value_heads": 4},
    "qwen3_moe": {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "gpt2": {},
    "bitnet": {"num_key_value_heads": 2},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "hybrid"],
        "num_mem_blocks": 1,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_ngroups": 1,
        "chunk_size": 8,
        "adapter_rank": 4,
    },
}
IDS = torch.arange(2 * 24).reshape(2, 24) * 7 % 320


def model_of(family: str) -> Any:
    torch.manual_seed(3)
    config = CONFIG_MAPPING[family](**SIZES, **FAMILIES[family], bos_token_id=1, eos_token_id=2)
    return AutoModelForCausalLM.from_config(config).eval()


def selective(model: Any) -> Any:
    wake_checkpointing(model, "selective")
    return model


def gradients(model: Any, *, bfloat16: bool = False) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        logits = model(input_ids=IDS, use_cache=False).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), IDS[:, 1:].flatten()).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def apart(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    assert got.keys() == want.keys()
    return max(float((got[n] - want[n]).abs().max() / want[n].abs().max().clamp(min=1e-6)) for n in want)


class Bytes(TorchDispatchMode):
    """Of what operations made and is alive yet."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage._cdata] = weakref.ref(storage), storage.nbytes()
        return out

    def alive(self) -> int:
        return sum(size for storage, size in self.made.values() if storage() is not None)


def kept(model: Any, *, mixed: bool) -> int:
    """Bytes that wait for the backward pass."""
    with Bytes() as seen, torch.autocast("cpu", torch.bfloat16, mixed, cache_enabled=False):
        out = model(input_ids=IDS, use_cache=False).logits
    assert out.requires_grad
    return seen.alive()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_plain_model(family: str) -> None:
    want = gradients(model_of(family))
    assert apart(gradients(selective(model_of(family))), want) < 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_in_mixed_precision_too(family: str) -> None:
    want = gradients(model_of(family), bfloat16=True)
    assert apart(gradients(selective(model_of(family)), bfloat16=True), want) < 1e-5


def adapted(model: Any) -> Any:
    model = add_lora(model, LoraSettings(r=4))
    torch.manual_seed(4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def test_adapters_learn_the_same() -> None:
    want = gradients(adapted(model_of("llama")))
    assert want
    assert all("lora_" in name for name in want)
    assert apart(gradients(selective(adapted(model_of("llama")))), want) < 1e-5


def in_bfloat16(model: Any) -> Any:
    return model.to(torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "mixed", "share"),
    [
        (lambda model: model, False, 0.75),
        (lambda model: model, True, 0.8),
        (in_bfloat16, False, 0.7),
        (adapted, False, 0.8),
        (adapted, True, 0.95),
        (lambda model: in_bfloat16(adapted(model)), False, 0.8),
    ],
    ids=["all", "all, mixed", "all, bfloat16", "adapters", "adapters, mixed", "adapters, bfloat16"],
)
def test_less_is_kept(change: Callable[[Any], Any], mixed: bool, share: float) -> None:
    """In mixed precision the casts stay, of which adapters read more."""
    plain = kept(change(model_of("llama")), mixed=mixed)
    assert kept(selective(change(model_of("llama"))), mixed=mixed) < share * plain


@pytest.mark.parametrize("shared_prefix", [False, True])
def test_packed_rows_learn_the_same(shared_prefix: bool) -> None:
    prompts, completions = [(5, 6, 7), (5, 6, 7), (8, 9)], [(1, 2, 3, 4), (9,), (4, 5, 6)]

    def learned(model: Any) -> dict[str, torch.Tensor]:
        assert structure(model).pack
        out = completion_logprobs(model, prompts, completions, entropy=True, shared_prefix=shared_prefix)
        assert out.entropy_BT is not None
        (out.logprobs_BT + 0.3 * out.entropy_BT).square().sum().backward()
        return {name: p.grad for name, p in model.named_parameters()}

    assert apart(learned(selective(model_of("qwen3"))), learned(model_of("qwen3"))) < 1e-5


def test_nothing_is_computed_again_where_nothing_learns() -> None:
    model = selective(model_of("llama"))
    with torch.no_grad():
        got = model(input_ids=IDS, use_cache=False).logits
    assert not got.requires_grad
    assert torch.equal(got, model_of("llama")(input_ids=IDS, use_cache=False).logits)


def test_a_copy_has_weights_of_its_own() -> None:
    model = selective(model_of("llama"))
    other = copy.deepcopy(model)
    want = gradients(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert apart(gradients(other), want) == 0.0

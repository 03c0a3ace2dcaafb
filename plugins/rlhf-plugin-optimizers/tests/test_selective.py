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

from rlhf_core.models import ModelError
from rlhf_core.models.config import LoraSettings
from rlhf_core.models.gradient_checkpointing import wake_checkpointing
from rlhf_core.models.save import add_lora

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


def kept(model: Any) -> int:
    """Bytes that wait for the backward pass."""
    with Bytes() as seen:
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


@pytest.mark.parametrize(("change", "share"), [(lambda model: model, 0.75), (adapted, 0.8)], ids=["all", "adapters"])
def test_less_is_kept(change: Callable[[Any], Any], share: float) -> None:
    plain, less = kept(change(model_of("llama"))), kept(selective(change(model_of("llama"))))
    assert less < share * plain


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


def test_a_model_without_such_parts_is_refused() -> None:
    model = model_of("gpt2")
    for layer in model.transformer.h:
        layer.ln_1 = layer.ln_2 = torch.nn.Identity()
    with pytest.raises(ModelError, match="finds nothing to compute again in GPT2LMHeadModel"):
        selective(model)


def test_a_feed_forward_of_another_form_is_refused() -> None:
    model = model_of("llama")
    for layer in model.model.layers:
        feed = layer.mlp
        feed.forward = lambda x, feed=feed: feed.down_proj(feed.act_fn(feed.up_proj(x)) * feed.gate_proj(x))
    with pytest.raises(ModelError, match="selective changes what LlamaForCausalLM computes"):
        selective(model)

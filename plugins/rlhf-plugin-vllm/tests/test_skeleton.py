"""The canary's forward holds one unit's weights at a time, and computes what the model with all of them does."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlhf_core.config import BuildContext
from rlhf_core.distributed import decoder_layers
from rlhf_core.models.precision import set_precision
from rlhf_plugin_preflight.memory.live import tensor_bytes
from rlhf_plugin_vllm.skeleton import Skeleton, without_weights

IDS = torch.tensor([[5, 9, 11, 300, 7, 42, 8]])
CPU = torch.device("cpu")


def policy(ctx: BuildContext, kind: str) -> Any:
    """The model, with its head apart from the embedding, with adapters, or computing in bfloat16."""
    model = copy.deepcopy(ctx.policy.model)
    if kind == "untied":
        model.lm_head.weight = torch.nn.Parameter(1.1 * model.lm_head.weight.detach())
    if kind == "lora":
        modules = ["q_proj", "v_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=4, target_modules=modules, init_lora_weights=False)).eval()
    if kind == "mixed":
        set_precision(model, "bf16")
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["tied", "untied", "lora", "mixed"])
def test_it_computes_what_the_whole_model_does_bit_for_bit(ctx: BuildContext, kind: str, dtype: torch.dtype) -> None:
    model = policy(ctx, kind)
    weights = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
    everything = {**dict(model.named_buffers()), **weights}
    with torch.no_grad():
        whole = without_weights(model).eval()
        want = torch.func.functional_call(whole, everything, (IDS,), {"use_cache": False}).logits
    skeleton, used = Skeleton(model), set[str]()
    for _ in range(2):
        got = skeleton(lambda name: used.add(name) or weights[name], CPU, dtype, IDS, use_cache=False).logits
        assert torch.equal(got, want)
    assert used == set(weights)
    assert {p.device.type for p in skeleton.model.parameters()} == {"meta"}


class Borrowing(torch.nn.Module):
    """A head without a weight of its own, which uses the embedding's and does not call it."""

    def __init__(self, source: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["source"] = source

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden, self.__dict__["source"].weight)


def test_a_model_whose_modules_use_each_others_weights_has_all_of_them(ctx: BuildContext) -> None:
    """On a CPU some operations take a weight that is not there for any numbers."""
    model = copy.deepcopy(ctx.policy.model)
    model.lm_head = Borrowing(model.model.embed_tokens)
    weights, skeleton = dict(model.named_parameters()), Skeleton(model)
    with torch.no_grad():
        want = model(IDS, use_cache=False).logits
    for _ in range(2):
        got = skeleton(lambda name: weights[name].detach(), CPU, torch.float32, IDS, use_cache=False).logits
        assert torch.equal(got, want)


def test_it_holds_one_unit(ctx: BuildContext) -> None:
    model = policy(ctx, "untied")
    weights, skeleton = dict(model.named_parameters()), Skeleton(model)
    layer = tensor_bytes(decoder_layers(model)[0].parameters())
    unit = max(layer, tensor_bytes([model.lm_head.weight]))
    alive: list[weakref.ref[torch.UntypedStorage]] = []
    held = []

    def value(name: str) -> torch.Tensor:
        weight = weights[name].detach().clone()
        alive.append(weakref.ref(weight.untyped_storage()))
        held.append(sum(memory.nbytes() for ref in alive if (memory := ref()) is not None))
        return weight

    skeleton(value, CPU, torch.float32, IDS, use_cache=False)
    assert len(held) == len(weights)
    assert max(held) == unit < tensor_bytes(weights.values()) / 3


def test_a_model_that_uses_a_weight_of_another_module_has_all_of_them_at_once(ctx: BuildContext) -> None:
    model = policy(ctx, "untied")
    weights = dict(model.named_parameters())

    class Reaches(torch.nn.Module):
        """Adds a row of the embedding to the logits, without a call of it."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.inner = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids, use_cache=False).logits + self.inner.model.embed_tokens.weight[0, 0]

    reaches = Reaches(model)
    with torch.no_grad():
        want = reaches(IDS)
    found = Skeleton(reaches)(lambda name: weights[name.removeprefix("inner.")].detach(), CPU, torch.float32, IDS)
    assert torch.equal(found, want)

"""Which norms and feed-forwards ``model.gradient_checkpointing=selective`` computes again, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from rlhf_core.models import ModelError
from rlhf_plugin_preflight.memory.unknown import without_values

from .test_selective import IDS, apart, gradients, model_of, selective


def clamped(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=0.05)) * self.up_proj(x).clamp(-0.05, 0.05))


def clamped_far(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x).clamp(-1e3, 1e3))


def in_float32(self: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = self.gate_proj(x), self.up_proj(x)
    return self.down_proj((self.act_fn(gate.float()) * up.float()).to(gate.dtype))


def scaled(self: Any, x: torch.Tensor) -> torch.Tensor:
    return 3.0 * self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def normed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.norm(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


def of_several(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, None]:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)), None


def with_feed_forward(forward: Any) -> Any:
    model = model_of("llama")
    for layer in model.model.layers:
        layer.mlp.__class__ = type("Changed", (LlamaMLP,), {"forward": forward})
        layer.mlp.norm = LlamaRMSNorm(96)
        layer.mlp.up_proj.weight.data *= 1e5 if forward is clamped_far else 1
        if forward is of_several:
            layer.mlp.register_forward_hook(lambda _, args, out: out[0])
    return model


def selective_before_weights(model: Any) -> Any:
    """As a strategy loads that divides the weights."""
    empty = selective(copy.deepcopy(model).to("meta")).to_empty(device="cpu")
    for ours, theirs in ((empty.parameters(), model.parameters()), (empty.buffers(), model.buffers())):
        for tensor, value in zip(ours, theirs, strict=True):
            tensor.data.copy_(value)
    return empty


@pytest.mark.parametrize("select", [selective, selective_before_weights])
@pytest.mark.parametrize("forward", [clamped, clamped_far, in_float32, scaled, normed, of_several])
def test_a_feed_forward_of_another_form_stays(forward: Any, select: Any) -> None:
    want = gradients(with_feed_forward(forward), bfloat16=True)
    assert apart(gradients(select(with_feed_forward(forward)), bfloat16=True), want) < 1e-5


@pytest.mark.parametrize("forward", [LlamaMLP.forward, clamped])
def test_a_memory_plan_knows_the_form(forward: Any) -> None:
    """Though tensors have no values there, and every comparison says yes."""
    with without_values():
        model = selective(with_feed_forward(forward))
    assert ("_again" in vars(model.model.layers[0].mlp)) is (forward is not clamped)
    assert "_again" in vars(model.model.layers[0].input_layernorm)


def test_a_forward_of_one_module_stays() -> None:
    def model() -> Any:
        changed = model_of("llama")
        for layer in changed.model.layers:
            feed = layer.mlp
            feed.forward = lambda x, feed=feed: feed.down_proj(feed.act_fn(feed.up_proj(x)) * feed.gate_proj(x))
        return changed

    assert apart(gradients(selective(model())), gradients(model())) < 1e-5


class OfMoreNorm(LlamaRMSNorm):
    """A norm with a parameter that it does not read, one in a module of its own, and another input."""

    def __init__(self) -> None:
        super().__init__(32)
        self.unread = torch.nn.Parameter(torch.ones(3))
        self.shift = torch.nn.Embedding.from_pretrained(torch.ones(1, 32), freeze=False)

    def forward(self, hidden_states: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return factor * super().forward(hidden_states) + self.shift.weight[0]


@pytest.mark.parametrize("inputs", [{}, {"factor": 3.0}])
def test_norms_may_read_more_and_less_than_an_input_and_a_weight(inputs: dict[str, float]) -> None:
    def model() -> Any:
        changed = model_of("llama")
        for layer in changed.model.layers:
            layer.input_layernorm = OfMoreNorm()
            layer.input_layernorm.register_forward_pre_hook(lambda _, args, kwargs: (args, inputs), with_kwargs=True)
        return changed

    assert apart(gradients(selective(model())), gradients(model())) < 1e-5


def test_inputs_may_be_given_by_name() -> None:
    def model() -> Any:
        changed = model_of("llama")
        for layer in changed.model.layers:
            for part, name in ((layer.input_layernorm, "hidden_states"), (layer.mlp, "x")):
                part.register_forward_pre_hook(lambda _, args, kwargs, n=name: ((), {n: args[0]}), with_kwargs=True)
        return changed

    assert apart(gradients(selective(model())), gradients(model())) < 1e-5


def test_a_model_without_such_parts_is_refused() -> None:
    model = model_of("gpt2")
    for layer in model.transformer.h:
        layer.ln_1 = layer.ln_2 = torch.nn.Identity()
    with pytest.raises(ModelError, match="finds nothing to compute again in GPT2LMHeadModel"):
        selective(model)


class OtherNorm(LlamaRMSNorm):
    """Without gradients, as where its result is kept, it is another."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) * (1 if torch.is_grad_enabled() else 2)


def test_a_norm_that_is_another_without_gradients_is_refused() -> None:
    model = model_of("llama")
    model.model.layers[1].input_layernorm = OtherNorm(32)
    with pytest.raises(ModelError, match="selective changes what LlamaForCausalLM computes"):
        selective(model)


def test_what_stays_may_be_another_without_gradients() -> None:
    model = model_of("llama")
    model.lm_head.register_forward_hook(lambda _, args, out: out if torch.is_grad_enabled() else 2 * out)
    assert gradients(selective(model))


@pytest.mark.parametrize("select", [lambda model: model, selective], ids=["plain", "selective"])
@pytest.mark.parametrize("changed", ["input", "weight"])
def test_what_is_changed_before_the_backward_pass_is_noticed(changed: str, select: Any) -> None:
    model = select(model_of("llama"))
    layer, gates = model.model.layers[1], []
    layer.mlp.gate_proj.register_forward_hook(lambda _, args, out: gates.append(out))
    loss = model(input_ids=IDS, use_cache=False).logits.sum()
    with torch.no_grad():
        (gates[0] if changed == "input" else layer.input_layernorm.weight).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_pass_is_refused() -> None:
    loss = selective(model_of("llama"))(input_ids=IDS, use_cache=False).logits.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="selective keeps nothing for a second backward pass"):
        loss.backward()


def test_casts_of_other_threads_outlive_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast's cache is one for all threads."""
    model, cleared = selective(model_of("llama")), []
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=IDS, use_cache=False).logits.sum()
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append(1))
    loss.backward()
    assert not cleared

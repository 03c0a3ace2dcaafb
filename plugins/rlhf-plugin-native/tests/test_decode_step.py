"""The fast decoding step: equal to the model's own forward, with its present weights, or not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.types.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native import decode_step
from rlhf_plugin_native import engine as native
from rlhf_plugin_native.decode_step import BLOCK
from rlhf_plugin_native.engine import NativeEngine

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
REQUESTS = [RolloutRequest(str(i), tuple(range(1, 2 + 3 * (i // 3))), i % 3, seed=i) for i in range(9)]
SAMPLING = SamplingParams(max_tokens=decode_step.WORTH_TOKENS + 4, temperature=0.8)


needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this processor (AVX2)"
)
"""Such a model is then decoded by transformers' own forward."""


def sampled(model: Any, tokenizer: Any, fast: bool, monkeypatch: pytest.MonkeyPatch) -> list[Rollout]:
    """What the engine samples; fails if the fast step is not what ``fast`` says."""
    with monkeypatch.context() as patch:
        steps: list[Any] = []
        step = decode_step.decode_step if fast else lambda _: None
        patch.setattr(native, "decode_step", lambda m: (steps.append(step(m)), steps[-1])[1])
        rollouts = NativeEngine(model, tokenizer, 128, max_concurrent=6).generate(REQUESTS, SAMPLING, 0)
        assert (steps[0] is not None) == fast
    return rollouts


def compare(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for got, want in zip(*(sampled(model, tokenizer, fast, monkeypatch) for fast in (True, False)), strict=True):
        assert got.completion_ids == want.completion_ids
        np.testing.assert_allclose(got.logprobs_T, want.logprobs_T, atol=1e-4)


def test_it_samples_what_the_model_samples(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped keys, prompts of several lengths, requests that enter later; then with other weights."""
    compare(model, tokenizer, monkeypatch)
    before = sampled(model, tokenizer, True, monkeypatch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    compare(model, tokenizer, monkeypatch)
    after = sampled(model, tokenizer, True, monkeypatch)
    assert [r.completion_ids for r in before] != [r.completion_ids for r in after], "the weights are the present ones"


@needs_bfloat16
def test_biases_and_bfloat16(new_model: Callable[..., Any], tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = new_model("llama", attention_bias=True, mlp_bias=True).to(torch.bfloat16)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.bias.normal_()
    assert decode_step.decode_step(model) is not None


@needs_bfloat16
def test_mixed_precision_is_sampled_in_mixed_precision(new_model: Callable[..., Any], tokenizer: Any) -> None:
    """The logprobs are nearer to those of a bfloat16 trunk than float32 is, and keys are kept in bfloat16."""
    from rlhf_core.models.precision import set_precision
    from rlhf_core.training.forward import completion_logprobs

    torch.manual_seed(0)
    model = new_model("llama", num_hidden_layers=6)
    exact = NativeEngine(model, tokenizer, 128).generate(REQUESTS, SAMPLING, 0)
    set_precision(model, "bf16")
    step = decode_step.decode_step(model)
    assert step is not None
    assert step.layers[0].down.dtype is torch.bfloat16
    assert step.head.dtype is torch.float32
    rollouts = NativeEngine(model, tokenizer, 128).generate(REQUESTS, SAMPLING, 0)
    assert [r.logprobs_T[0] for r in exact] != [r.logprobs_T[0] for r in rollouts]
    with torch.no_grad():
        out = completion_logprobs(
            model,
            [r.prompt_ids for r in rollouts],
            [r.completion_ids for r in rollouts],
            temperature=SAMPLING.temperature,
        )
    for i, r in enumerate(rollouts):
        np.testing.assert_allclose(r.logprobs_T, out.logprobs_BT[i, : len(r.completion_ids)].numpy(), atol=0.15)


@needs_bfloat16
def test_mixed_precision_outgrows_the_room_of_the_cache(new_model: Callable[..., Any], tokenizer: Any) -> None:
    """Room for further positions is of the number type that is held, not of that in which keys are rotated."""
    from rlhf_core.models.precision import set_precision

    model = new_model("llama")
    set_precision(model, "bf16")
    assert decode_step.decode_step(model) is not None
    long = SamplingParams(max_tokens=BLOCK + 8, min_tokens=BLOCK + 8)
    rollouts = NativeEngine(model, tokenizer, 128).generate(REQUESTS, long, 0)
    assert {len(r.completion_ids) for r in rollouts} == {BLOCK + 8}


def test_adapters_are_added_in(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_core.models.config import LoraSettings
    from rlhf_core.models.save import add_lora

    adapted = add_lora(model, LoraSettings(r=4)).eval()
    plain = sampled(adapted, tokenizer, True, monkeypatch)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    compare(adapted, tokenizer, monkeypatch)
    assert [r.completion_ids for r in sampled(adapted, tokenizer, True, monkeypatch)] != [
        r.completion_ids for r in plain
    ]
    with adapted.disable_adapter():
        assert [r.completion_ids for r in sampled(adapted, tokenizer, True, monkeypatch)] == [
            r.completion_ids for r in plain
        ]


@pytest.mark.parametrize("model", ["gpt2", "mistral", "gemma2"], indirect=True)
def test_other_models_are_decoded_by_transformers(model: Any) -> None:
    assert decode_step.decode_step(model) is None


def test_a_model_that_only_looks_alike_is_found_out(model: Any) -> None:
    """Scaled attention output, as some architectures have it, inside the usual parts."""
    attention = model.model.layers[1].self_attn
    attention.register_forward_hook(lambda _, inputs, output: (output[0] * 1.05, *output[1:]))
    assert decode_step.decode_step(model) is None

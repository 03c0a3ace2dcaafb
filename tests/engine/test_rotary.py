"""Rotary embeddings that depend on the length of a sequence: equal whatever the batch, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.last_token import last_token_hidden
from rlhf_core.models.layers.trunk_and_head import length_limit
from rlhf_core.models.load import context_length
from rlhf_core.training.forward import completion_logprobs
from rlhf_core.types.errors import ConfigError, ModelError
from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine

ORIGINAL = 24
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def make(kind: str) -> Any:
    torch.manual_seed(5)
    if kind == "dynamic":
        rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
        return LlamaForCausalLM(LlamaConfig(max_position_embeddings=ORIGINAL, rope_parameters=rope, **SIZES)).eval()
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0, 4.0, 8.0, 16.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    config = Phi3Config(
        max_position_embeddings=96, original_max_position_embeddings=ORIGINAL, rope_parameters=rope, **SIZES
    )
    return Phi3ForCausalLM(config).eval()


kinds = pytest.mark.parametrize("kind", ["longrope", "dynamic"])


def rows(longest: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Prompts of 4 tokens and completions; the last one feeds ``longest`` tokens."""
    sizes = (3, 7, 12, longest - 4 + 1)
    return [tuple(range(5 * n, 5 * n + 4)) for n in range(4)], [tuple(range(9, 9 + size)) for size in sizes]


def gradient(model: Any, longest: int, micro_batch: int) -> torch.Tensor:
    prompts, completions = rows(longest)
    model.zero_grad()
    for at in range(0, 4, micro_batch):
        part = slice(at, at + micro_batch)
        out = completion_logprobs(model, prompts[part], completions[part])
        (out.logprobs_BT * torch.arange(1, out.logprobs_BT.shape[1] + 1)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@kinds
def test_the_gradient_is_that_of_single_sequences_up_to_the_limit(kind: str) -> None:
    model = make(kind)
    assert length_limit(model) == ORIGINAL
    torch.testing.assert_close(gradient(model, ORIGINAL, 4), gradient(model, ORIGINAL, 1), rtol=1e-4, atol=1e-4)


@kinds
def test_beyond_the_limit_is_refused(kind: str) -> None:
    model = make(kind)
    for micro_batch in (4, 1):
        with pytest.raises(ValueError, match=f"{kind} rotary embeddings of .* change with the length beyond 24"):
            gradient(model, ORIGINAL + 1, micro_batch)
    with pytest.raises(ValueError, match="25 tokens"):
        last_token_hidden(model.get_decoder(), [(1, 2), tuple(range(25))])


@kinds
def test_nothing_is_sampled_beyond_the_limit(kind: str, tokenizer: Any) -> None:
    """A prompt beside a longer one would get other samples."""
    engine = NativeEngine(make(kind), tokenizer, context=96)
    request = RolloutRequest("p", tuple(range(5, 15)), 0, seed=1)
    assert engine.generate([request], SamplingParams(max_tokens=14), 0)
    with pytest.raises(ConfigError, match="more than the model's context of 24"):
        engine.generate([request], SamplingParams(max_tokens=15), 0)


def test_the_context_ends_where_frequencies_change(caplog: pytest.LogCaptureFixture) -> None:
    model = make("longrope")
    assert context_length(model, ModelConfig()) == ORIGINAL
    assert "longrope" in caplog.text
    assert context_length(model, ModelConfig(max_context=16)) == 16
    with pytest.raises(ModelError, match="longrope") as caught:
        context_length(model, ModelConfig(max_context=64))
    assert "max_context=24" in str(caught.value)


def test_other_models_have_no_limit(model: Any) -> None:
    assert length_limit(model) is None

"""Models with recurrent states are sampled as they are trained, or refused by name; so are encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    FalconH1Config,
    FalconH1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.training.forward import completion_logprobs
from rlhf_core.types.errors import ModelError
from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine

SIZES: dict[str, Any] = {"vocab_size": 320, "hidden_size": 32, "initializer_range": 0.3, "pad_token_id": 0}
LAYERS: dict[str, Any] = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def qwen3_next() -> Any:
    linear = dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads"), 2)
    linear |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    experts |= {"shared_expert_intermediate_size": 16}
    return Qwen3NextForCausalLM(
        Qwen3NextConfig(num_hidden_layers=4, head_dim=8, **linear, **experts, **LAYERS, **SIZES)
    )


def mamba2() -> Any:
    sizes = {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}
    return Mamba2ForCausalLM(Mamba2Config(num_hidden_layers=2, **sizes, **SIZES))


def falcon_h1() -> Any:
    """Keys and values and a state in one layer."""
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1}
    return FalconH1ForCausalLM(FalconH1Config(num_hidden_layers=2, head_dim=8, **sizes, **LAYERS, **SIZES))


def lfm2() -> Any:
    return Lfm2ForCausalLM(Lfm2Config(num_hidden_layers=3, full_attn_idxs=[1], **LAYERS, **SIZES))


@pytest.mark.slow
@pytest.mark.parametrize("make", [None, mamba2, qwen3_next, falcon_h1, lfm2])
def test_samples_do_not_depend_on_neighbours_and_mean_what_training_means(
    make: Any, new_model: Any, tokenizer: Any
) -> None:
    torch.manual_seed(2)
    model = new_model("mamba", tokenizer.eos_token_id) if make is None else make().eval()
    engine = NativeEngine(model, tokenizer, 64)
    prompts = [tuple(range(5, 12))] * 3 + [(9, 8, 7)] * 2 + [(1, 2, 3, 4)]
    requests = [RolloutRequest(f"p{n}", prompt, n, seed=n) for n, prompt in enumerate(prompts)]
    together = engine.generate(requests, SamplingParams(max_tokens=18), 0)
    for request, rollout in zip(requests, together, strict=True):
        alone = engine.generate([request], SamplingParams(max_tokens=18), 0)[0]
        assert alone.completion_ids == rollout.completion_ids
    trained = completion_logprobs(model, prompts, [r.completion_ids for r in together])
    for row, rollout in zip(trained.logprobs_BT, together, strict=True):
        trained_T = row[: len(rollout.completion_ids)].detach().numpy()
        np.testing.assert_allclose(trained_T, rollout.logprobs_T, atol=2e-4)


def test_a_state_that_cannot_be_carried_is_refused_by_name(tokenizer: Any) -> None:
    model = RwkvForCausalLM(
        RwkvConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, intermediate_size=64)
    ).eval()
    with pytest.raises(ModelError, match="RwkvForCausalLM cannot be sampled"):
        NativeEngine(model, tokenizer, 64)


def test_an_encoder_is_refused_at_load_by_name(tokenizer: Any, tmp_path: Path) -> None:
    config = BertConfig(num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, **SIZES)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"BertLMHeadModel.*an encoder"):
        load_policy(ModelConfig(path=str(tmp_path)))
    config.is_decoder = True
    config.save_pretrained(tmp_path)
    assert load_policy(ModelConfig(path=str(tmp_path)))

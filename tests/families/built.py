"""Tiny random models of many families of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"head_dim": 8},
    "gpt_oss": {"head_dim": 8, **EXPERTS},
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "mamba": {"state_size": 8},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "falcon": {},
    "phi": {},
    "gpt_neox": {},
    "mixtral": EXPERTS,
    "qwen2_moe": {"shared_expert_intermediate_size": 16, **EXPERTS},
    "qwen3_moe": {"head_dim": 8, **EXPERTS},
    "olmoe": EXPERTS,
    "granitemoe": EXPERTS,
    "deepseek_v2": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
    },
}
LATENT = {name: value for name, value in FAMILIES["deepseek_v2"].items() if name != "topk_method"}
FAMILIES["deepseek_v3"] = LATENT

MORE: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("mistral", "qwen2", "phi3", "olmo2", "smollm3", "granite", "stablelm", "starcoder2")},
    **{name: {"head_dim": 8} for name in ("qwen3", "gemma3_text", "cohere2", "glm4")},
    "qwen3_5_text": {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
}
"""Further ones, for the table of what works with what."""


def build(family: str, **extra: Any) -> Any:
    """A random model of a family, in eval mode, the same each time."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **(FAMILIES | MORE)[family], **extra})
    return AutoModelForCausalLM.from_config(config).eval()

"""Llama-type models with random weights, for timings: what a turn costs does not depend on what the weights say."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, int]] = {
    "llama-1m": {
        "vocab_size": 2048,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "llama-11m": {
        "vocab_size": 8192,
        "hidden_size": 320,
        "intermediate_size": 864,
        "num_hidden_layers": 8,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
    },
}
"""Sizes by name; heads are 64 wide."""


def random_llama(shape: str, context: int = 4096, seed: int = 0) -> Any:
    """A model of that shape, float32, on the CPU; its head is its embedding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {**SHAPES[shape], "max_position_embeddings": context}
    config = LlamaConfig(**sizes, tie_word_embeddings=True, eos_token_id=None, bos_token_id=None)
    return LlamaForCausalLM(config).eval()

"""Llama-type models with random weights, for timings: what a turn costs does not depend on what the weights say.

    python -m scripts.bench._random_llama llama-135m FOLDER

writes one with pocket's tokenizer, for measurements on cards.
"""

from __future__ import annotations

import sys
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
    "llama-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
}
"""Sizes by name; heads are 64 wide. The last is SmolLM2-135M's."""


def random_llama(shape: str, context: int = 4096, seed: int = 0) -> Any:
    """A model of that shape, float32, on the CPU; its head is its embedding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {**SHAPES[shape], "max_position_embeddings": context}
    config = LlamaConfig(**sizes, tie_word_embeddings=True, eos_token_id=None, bos_token_id=None)
    return LlamaForCausalLM(config).eval()


def main(shape: str, folder: str) -> None:
    """Write a model of that shape as a folder that ``--model`` takes."""
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(path="pocket"))
    model = random_llama(shape)
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

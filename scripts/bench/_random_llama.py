"""Llama-type models with random weights, for timings: what a turn costs does not depend on what the weights say.

    python -m scripts.bench._random_llama llama-135m FOLDER

writes one with pocket's tokenizer, for measurements on cards.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, int]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


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

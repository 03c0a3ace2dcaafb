"""Seconds per token of packed rows, forward and backward, from 512 to 16,384 tokens in one row: they must not grow.

One layer a third as wide as SmolLM2-135M's, with random weights; a longer row holds more sequences and no longer ones.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from rlhf_core.models.layers.matmul import use_matmul_backend
from rlhf_core.models.layers.packing import packed_hidden
from rlhf_core.training.forward import structure
from scripts.bench._processor import least_seconds

PROMPT, COMPLETION, GROUP = 16, 14, 8
BLOCK = PROMPT + GROUP * COMPLETION
"""Tokens laid for one prompt and its completions: the last token of each completion is left out, so each has one
more."""
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
VOCABULARY = 1024


def layer() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=1,
            num_attention_heads=3,
            num_key_value_heads=1,
            max_position_embeddings=2048,
        )
    )
    assert structure(model).pack
    return model


def seconds(model: Any, tokens: int) -> float:
    generator = torch.Generator().manual_seed(1)

    def draw(size: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCABULARY, (size,), generator=generator).tolist())

    prompts = [prompt for prompt in (draw(PROMPT) for _ in range(tokens // BLOCK)) for _ in range(GROUP)]
    completions = [draw(COMPLETION + 1) for _ in prompts]
    return least_seconds(
        lambda: packed_hidden(model, prompts, completions, share=True).sum().backward(), time.process_time
    )


def run() -> dict[str, Any]:
    use_matmul_backend("auto")
    model = layer()
    by_length = {tokens: 1e6 * seconds(model, tokens) / tokens for tokens in TOKENS}
    use_matmul_backend("torch")
    return {
        "microseconds_per_token": {str(tokens): round(value, 1) for tokens, value in by_length.items()},
        "longest_over_shortest": round(by_length[TOKENS[-1]] / by_length[TOKENS[0]], 2),
    }

"""Tiny random models of several architectures, and a byte-level tokenizer whose pad token is its EOS.

Token 0 is the ordinary character ``!`` in all of them, so anything that infers lengths from ids fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

torch.set_num_threads(1)  # models this small only wait for their threads
VOCABULARY = 320


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    corpus = ["the cat sat on the mat", "the answer is here </answer>", "hello there, other worlds"] * 20
    backend.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    backend.add_special_tokens(["<end>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")
    assert fast.pad_token_id == fast.eos_token_id
    assert fast.decode([0]) == "!"
    return fast


def make(kind: str, eos: int | None = None, **extra: Any) -> Any:
    """Grouped-query attention; learned positions; a sliding window of 4; the same with capped logits;
    a recurrent state."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "eos_token_id": eos,
        "bos_token_id": None,
        "pad_token_id": eos,
        "initializer_range": 0.3,
        **extra,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(max_position_embeddings=128, **sizes)).eval()
    if kind == "mistral":
        return MistralForCausalLM(MistralConfig(sliding_window=4, **sizes)).eval()
    if kind == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(head_dim=8, sliding_window=4, **sizes)).eval()
    if kind == "mamba":
        return MambaForCausalLM(
            MambaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                state_size=4,
                num_hidden_layers=2,
                eos_token_id=eos,
                pad_token_id=eos,
            )
        ).eval()
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            eos_token_id=eos,
            bos_token_id=None,
            initializer_range=0.3,
        )
    ).eval()


@pytest.fixture
def model(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """A model of the kind given by indirect parametrisation, ``llama`` by default."""
    torch.manual_seed(3)
    return make(getattr(request, "param", "llama"), tokenizer.eos_token_id)


@pytest.fixture(scope="session")
def new_model() -> Callable[..., Any]:
    return make

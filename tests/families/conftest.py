"""Models of many families, saved with a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.families.built import build


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Bytes, ``<s>``, ``</s>`` and ``<turn>``: 259 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<turn>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")


@pytest.fixture
def saved(tmp_path: Path, tokenizer: Any) -> Callable[..., Path]:
    """Saves a model of a family; returns its folder."""

    def save(family: str, **extra: Any) -> Path:
        folder = tmp_path / family
        build(family, **extra).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save

"""A voice's folder in Hugging Face form, made from its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_plugin_tts.pocket_voice.codec import PocketCodec
from rlhf_plugin_tts.pocket_voice.modality import MODALITY_FILE, NAME
from rlhf_plugin_tts.pocket_voice.vocabulary import EOS, PAD, make_tokenizer, vocabulary

CONTEXT = 1024
"""Prompt and completion: about ten seconds of speech."""


def new_model(spectrum_codes: int, hidden: int = 128, layers: int = 3) -> Any:
    """A Llama of the voice's vocabulary, not trained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = vocabulary(spectrum_codes)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(ids),
            hidden_size=hidden,
            intermediate_size=hidden * 5 // 2,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            tie_word_embeddings=True,
            pad_token_id=ids[PAD],
            eos_token_id=ids[EOS],
            bos_token_id=None,
        )
    )


def write_voice(folder: Path, model: Any, codec: PocketCodec, facts: Mapping[str, Any] | None = None) -> None:
    """Model, tokenizer, codec and ``modality.json``; and ``BUILD.json`` with the facts of how it was made."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    make_tokenizer(len(codec.codebook)).save_pretrained(folder)
    codec.save(folder)
    (folder / MODALITY_FILE).write_text(json.dumps({"modality": NAME}) + "\n")
    if facts:
        (folder / "BUILD.json").write_text(json.dumps(dict(facts), indent=1) + "\n")

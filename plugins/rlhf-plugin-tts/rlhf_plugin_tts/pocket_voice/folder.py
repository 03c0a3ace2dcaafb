"""A voice's folder in Hugging Face form, made from its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_plugin_tts.pocket_voice.codec import EXCITATIONS, PocketCodec
from rlhf_plugin_tts.pocket_voice.frontend import COMMA, FULL_STOP, PHONES, QUESTION, STYLES, WORD_END
from rlhf_plugin_tts.pocket_voice.modality import MODALITY_FILE, NAME

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
    names = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNKNOWN, "model_max_length": CONTEXT}
    whole_tokens(vocabulary(len(codec.codebook)), UNKNOWN, **names).save_pretrained(folder)
    codec.save(folder)
    (folder / MODALITY_FILE).write_text(json.dumps({"modality": NAME}) + "\n")
    if facts:
        (folder / "BUILD.json").write_text(json.dumps(dict(facts), indent=1) + "\n")


PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


def vocabulary(spectrum_codes: int) -> dict[str, int]:
    codes = [*(f"e{i}" for i in range(EXCITATIONS)), *(f"c{i}" for i in range(spectrum_codes))]
    names = [PAD, EOS, UNKNOWN, *STYLES, "|", ">", WORD_END, COMMA, FULL_STOP, QUESTION, *PHONES, *codes]
    assert len(set(names)) == len(names)
    return {name: i for i, name in enumerate(names)}


def whole_tokens(vocabulary: Mapping[str, int], unknown: str, **settings: Any) -> Any:
    """A transformers tokenizer of whole tokens; ``decode`` writes them with blanks, ``encode`` reads that again."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(dict(vocabulary), unknown))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=False, **settings)

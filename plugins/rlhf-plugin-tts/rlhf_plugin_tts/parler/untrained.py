"""A small Parler-TTS that nobody trained, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_plugin_tts.codec_voice.untrained import SIZE, untrained_codec
from rlhf_plugin_tts.parler.config import ParlerConfig

DECODER: dict[str, Any] = {
    "vocab_size": SIZE + 4,
    "max_position_embeddings": 128,
    "num_hidden_layers": 2,
    "ffn_dim": 24,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "num_codebooks": 2,
    "pad_token_id": SIZE,
    "bos_token_id": SIZE + 1,
    "eos_token_id": SIZE,
    "initializer_factor": 0.3,
}
TEXT: dict[str, Any] = {"model_type": "t5", "vocab_size": 40, "d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1}


def write_untrained_parler(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Folders of a model, with a tokenizer of letters, and of a codec."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from rlhf_plugin_tts.parler.stream import ParlerStream

    torch.manual_seed(seed)
    text = {**TEXT, "num_heads": 2, "dropout_rate": 0.0}
    config = ParlerConfig(vocab_size=40, text_encoder=text, audio_encoder={"model_type": "dac"}, decoder=dict(DECODER))
    ParlerStream(config).save_pretrained(folder / "parler")
    letters = {letter: n for n, letter in enumerate(["<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .,"])}
    words = Tokenizer(models.WordLevel(letters, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder / "parler")
    untrained_codec("dac").save_pretrained(folder / "dac")
    return folder / "parler", folder / "dac"

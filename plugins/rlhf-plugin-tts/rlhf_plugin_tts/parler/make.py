"""Makes a speech policy of a Parler-TTS folder and its codec."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import whole_folder, write_json
from rlhf_core.models import ModelError
from rlhf_plugin_tts.code_stream.make import OTHERS, read_model_config, stream_tokenizer
from rlhf_plugin_tts.code_stream.modality import MODALITY_FILE
from rlhf_plugin_tts.codec_voice.codec import Codec, fetch, link_folder
from rlhf_plugin_tts.parler.modality import NAME, ParlerVoice


def make_parler(
    model: str, codec: str, output: Path, *, voice: str = "", descriptions: str | None = None, learn: str = "all"
) -> dict[str, Any]:
    """Write a folder with weights, codec, tokenizers and ``modality.json``; weights are linked where that is possible.

    Args:
        model: folder or hub id of a Parler-TTS model.
        codec: folder or hub id of its codec in Hugging Face form, such as ``descript/dac_44khz``.
        output: a new folder.
        voice: description of prompts that have none.
        descriptions: folder or hub id of the tokenizer of descriptions; None takes that of the text encoder.
        learn: ``all`` codebooks get gradients, or the ``first`` alone.

    Raises:
        ModelError: one of them is not there, or they do not fit together.
        ConfigError: the folder exists, or a tokenizer needs a package that is not installed.
    """
    from transformers import AutoTokenizer

    if output.exists():
        raise ConfigError(f"--output {output} exists", fix="name a new folder")
    weights, sounds = fetch(model, "model"), fetch(codec, "codec")
    described = read_model_config(weights, model, "parler_tts")
    if described.get("prompt_cross_attention"):
        raise ModelError(f"'{model}' attends to its text in a way that is not supported (prompt_cross_attention)")
    about = descriptions or described["text_encoder"].get("_name_or_path") or model
    Codec(sounds)
    texts = (weights, fetch(about, "tokenizer"))
    check_readable(texts)
    with whole_folder(output) as aside:
        link_folder(weights, aside)
        for name in OTHERS:
            (aside / name).unlink(missing_ok=True)  # a link: written anew, the model's own must not change
        link_folder(sounds, aside / "codec")
        for name, place in zip(ParlerVoice.TOKENIZERS, texts, strict=True):
            AutoTokenizer.from_pretrained(place).save_pretrained(aside / name)
        write_json(aside / "config.json", {**described, "learned_codebooks": learn})
        tokenizer = stream_tokenizer(described["decoder"]["vocab_size"])
        tokenizer.save_pretrained(aside)
        write_json(aside / MODALITY_FILE, {"modality": NAME, "voice": voice})
        made = ParlerVoice(aside, tokenizer)
    inner = made.config.decoder
    codes = inner.num_codebooks * made.codec.size
    return {"output": str(output), "codec": made.codec.family, "codes": codes, "rate": made.codec.rate}


def check_readable(folders: Sequence[Path]) -> None:
    """Refuse a tokenizer that is there as ``spiece.model`` alone where sentencepiece is not installed.

    Raises:
        ConfigError: names the extra.
    """
    for folder in folders:
        alone = (folder / "spiece.model").is_file() and not (folder / "tokenizer.json").is_file()
        if alone and importlib.util.find_spec("sentencepiece") is None:
            raise ConfigError(
                f"the tokenizer in '{folder}' needs the package 'sentencepiece', which is not installed",
                fix='pip install "rlhf-plugin-tts[parler]"',
            )

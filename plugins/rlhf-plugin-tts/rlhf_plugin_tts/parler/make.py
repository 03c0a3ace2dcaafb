"""Makes a speech policy of a Parler-TTS folder and its codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_core.api import ConfigError, ModelError
from rlhf_core.sdk import whole_folder, write_json
from rlhf_plugin_tts.codec_voice.codec import Codec, fetch, link_folder
from rlhf_plugin_tts.parler.config import MARKS
from rlhf_plugin_tts.parler.modality import MODALITY_FILE, NAME, TOKENIZERS, ParlerVoice

OTHERS = ("generation_config.json", "preprocessor_config.json", "special_tokens_map.json", "tokenizer.json")
OTHERS += ("tokenizer_config.json", "spiece.model", "tokenizer.model", "added_tokens.json", "config.json")
LEARN = ("all", "first")


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
        ConfigError: the folder exists.
    """
    from transformers import AutoTokenizer

    if output.exists():
        raise ConfigError(f"--output {output} exists", fix="name a new folder")
    weights, sounds = fetch(model, "model"), fetch(codec, "codec")
    described = json.loads((weights / "config.json").read_text())
    if described.get("model_type") != "parler_tts":
        raise ModelError(f"'{model}' is a {described.get('model_type')}, not Parler-TTS", fix="leave --like parler out")
    if described.get("prompt_cross_attention"):
        raise ModelError(f"'{model}' attends to its text in a way that is not supported (prompt_cross_attention)")
    about = descriptions or described["text_encoder"].get("_name_or_path") or model
    Codec(sounds)
    with whole_folder(output) as aside:
        link_folder(weights, aside)
        for name in OTHERS:
            (aside / name).unlink(missing_ok=True)  # a link: written anew, the model's own must not change
        link_folder(sounds, aside / "codec")
        for name, place in zip(TOKENIZERS, (weights, fetch(about, "tokenizer")), strict=True):
            AutoTokenizer.from_pretrained(place).save_pretrained(aside / name)
        write_json(aside / "config.json", {**described, "learned_codebooks": learn})
        tokenizer = stream_tokenizer(described["decoder"]["vocab_size"])
        tokenizer.save_pretrained(aside)
        write_json(aside / MODALITY_FILE, {"modality": NAME, "voice": voice})
        made = ParlerVoice(aside, tokenizer)
    inner = made.config.decoder
    codes = inner.num_codebooks * made.codec.size
    return {"output": str(output), "codec": made.codec.family, "codes": codes, "rate": made.codec.rate}


def stream_tokenizer(codes: int) -> Any:
    """Names of the codes and marks of the stream; texts have tokenizers of their own."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*(f"c{n}" for n in range(codes + 1)), *MARKS]
    words = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, MARKS[-1]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=MARKS[0], pad_token=MARKS[-1], clean_up_tokenization_spaces=False
    )

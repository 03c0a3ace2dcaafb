"""Makes a speech policy of a language model that speaks codec ids, and a codec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf_core.config import ConfigError
from rlhf_core.data import whole_folder, write_json
from rlhf_core.models import ModelConfig, ModelError, load_tokenizer
from rlhf_plugin_tts.codec_voice.codec import Codec, fetch, link_folder
from rlhf_plugin_tts.codec_voice.description import MODALITY_FILE, CodecVoiceDescription
from rlhf_plugin_tts.codec_voice.modality import CodecVoice

GENERATION = "generation_config.json"
OTHER_MAKERS = {"parler_tts": "parler", "dia": "dia", "csm": "csm"}
UNSUPPORTED = {"musicgen": "MusicGen", "moshi": "Moshi"}


def make_voice(model: str, codec: str, output: Path, end: str | None, described: Mapping[str, Any]) -> dict[str, Any]:
    """Write a folder with model, tokenizer, codec and ``modality.json``; weights are linked where that is possible."""
    if output.exists():
        raise ConfigError(f"--output {output} exists", fix="name a new folder")
    try:
        description = CodecVoiceDescription.model_validate({**described, "codec": "codec"})
    except ValidationError as error:
        raise ConfigError("these settings describe no voice", why=str(error.errors()[0]["msg"])) from error
    weights, sounds = fetch(model, "model"), fetch(codec, "codec")
    refuse_others(weights, model)
    tokenizer = load_tokenizer(ModelConfig(path=str(weights)))
    if end is not None:
        if end not in tokenizer.get_vocab():
            raise ModelError(f"'{model}' has no token {end!r}", fix="name the token that ends speech: --end NAME")
        tokenizer.eos_token = end
    Codec(sounds)
    with whole_folder(output) as aside:
        link_folder(weights, aside)
        link_folder(sounds, aside / "codec")
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", GENERATION):
            (aside / name).unlink(missing_ok=True)  # a link: written anew, the model's own must not change
        tokenizer.save_pretrained(aside)
        write_json(aside / GENERATION, _generation(weights, tokenizer.eos_token_id))
        (aside / MODALITY_FILE).unlink(missing_ok=True)
        (aside / MODALITY_FILE).write_text(description.model_dump_json(indent=1, exclude_none=True) + "\n")
        voice = CodecVoice(aside, tokenizer)
    codes = len(voice.number_of)
    return {"output": str(output), "codec": voice.codec.family, "codes": codes, "rate": voice.codec.rate}


def _generation(weights: Path, end: int) -> dict[str, Any]:
    """The model's generation settings with the end token first."""
    file = weights / GENERATION
    settings = json.loads(file.read_text()) if file.is_file() else {}
    known = settings.get("eos_token_id")
    others = known if isinstance(known, list) else [] if known is None else [known]
    return {**settings, "eos_token_id": list(dict.fromkeys([end, *others]))}


def refuse_others(weights: Path, model: str) -> None:
    """Refuse speech models that are no causal language model of one stream."""
    file = weights / "config.json"
    kind = json.loads(file.read_text()).get("model_type") if file.is_file() else None
    if kind in OTHER_MAKERS:
        raise ModelError(f"'{model}' is a {kind}, which has a stream of its own", fix=f"--like {OTHER_MAKERS[kind]}")
    if kind in UNSUPPORTED:
        raise ModelError(
            f"'{model}' is a {UNSUPPORTED[kind]}, which cannot be sampled or trained here yet",
            why="it predicts several codes a step, and its stream of tokens is not written",
            fix="a Parler-TTS, Dia or CSM (--like), or a language model with codec ids",
        )

"""Makes a speech policy of a Parler-TTS, a Dia or a CSM and its codec."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import whole_folder, write_json
from rlhf_core.models import ModelError
from rlhf_plugin_tts.code_stream.modality import MODALITY_FILE
from rlhf_plugin_tts.code_stream.stream import MARKS
from rlhf_plugin_tts.codec_voice.codec import Codec, fetch, link_folder
from rlhf_plugin_tts.pocket_voice.folder import whole_tokens

OTHERS = (
    *("generation_config.json", "preprocessor_config.json", "processor_config.json", "special_tokens_map.json"),
    *("tokenizer.json", "tokenizer_config.json", "spiece.model", "tokenizer.model", "added_tokens.json"),
    *("chat_template.jinja", "config.json"),
)
KINDS = {
    "parler": ("parler_tts", "Parler-TTS", "rlhf_plugin_tts.parler.modality", "ParlerVoice"),
    "dia": ("dia", "Dia", "rlhf_plugin_tts.dia.modality", "DiaVoice"),
    "csm": ("csm", "CSM", "rlhf_plugin_tts.csm.modality", "CsmVoice"),
}
"""Kind -> its model type, title and voice."""


def make_stream_voice(
    kind: str,
    model: str,
    codec: str,
    output: Path,
    *,
    voice: str = "",
    descriptions: str | None = None,
    learn: str = "all",
) -> dict[str, Any]:
    """Write a folder with weights, codec, tokenizers and ``modality.json``; weights are linked if possible."""
    from transformers import AutoTokenizer

    if voice and kind == "dia":
        raise ConfigError("--voice is not for Dia", why="it takes no description", fix="leave it out")
    if voice and kind == "csm" and not voice.isdecimal():
        raise ConfigError(
            f"--voice {voice!r} is not a speaker's number", why="CSM takes no description", fix="--voice 0"
        )
    if output.exists():
        raise ConfigError(f"--output {output} exists", fix="name a new folder")
    weights, sounds = fetch(model, "model"), fetch(codec, "codec")
    described = read_model_config(weights, model, kind)
    if described.get("prompt_cross_attention"):
        raise ModelError(f"'{model}' attends to its text in a way that is not supported (prompt_cross_attention)")
    Codec(sounds)
    texts = [weights]
    if kind == "parler":
        about = descriptions or described["text_encoder"].get("_name_or_path") or model
        texts.append(fetch(about, "tokenizer"))
        check_readable(texts)
    _, _, module, name = KINDS[kind]
    modality = import_module(module)
    voice_class: Any = getattr(modality, name)
    with whole_folder(output) as aside:
        link_folder(weights, aside)
        for other in OTHERS:
            (aside / other).unlink(missing_ok=True)  # a link: written anew, the model's own must not change
        link_folder(sounds, aside / "codec")
        for name, folder in zip(voice_class.TOKENIZERS, texts, strict=True):
            AutoTokenizer.from_pretrained(str(folder)).save_pretrained(str(aside / name))
        write_json(aside / "config.json", {**described, "learned_codebooks": learn})
        write_json(aside / MODALITY_FILE, {"modality": modality.NAME, "voice": voice})
        layout = voice_class.laid_out(voice_class.config_class.from_pretrained(aside))
        tokenizer = stream_tokenizer(layout.codes)
        tokenizer.save_pretrained(aside)
        made = voice_class(aside, tokenizer)
    codes = len(layout.delays) * made.codec.size
    return {"output": str(output), "codec": made.codec.family, "codes": codes, "rate": made.codec.rate}


def check_readable(folders: Sequence[Path]) -> None:
    """Refuse a tokenizer that is there as ``spiece.model`` alone where sentencepiece is not installed."""
    for folder in folders:
        alone = (folder / "spiece.model").is_file() and not (folder / "tokenizer.json").is_file()
        if alone and importlib.util.find_spec("sentencepiece") is None:
            raise ConfigError(
                f"the tokenizer in '{folder}' needs the package 'sentencepiece', which is not installed",
                fix='pip install "rlhf-plugin-tts[parler]"',
            )


def read_model_config(weights: Path, model: str, kind: str) -> dict[str, Any]:
    file = weights / "config.json"
    described: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    model_type, title, *_ = KINDS[kind]
    if described.get("model_type") != model_type:
        raise ModelError(f"'{model}' is a {described.get('model_type')}, not {title}", fix="another --like")
    return described


def stream_tokenizer(codes: int) -> Any:
    """Names of the codes and marks of the stream; texts have tokenizers of their own."""
    names = [*(f"c{n}" for n in range(codes + 1)), *MARKS]
    vocabulary = {name: n for n, name in enumerate(names)}
    return whole_tokens(vocabulary, MARKS[-1], eos_token=MARKS[0], pad_token=MARKS[-1])

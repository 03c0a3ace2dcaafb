"""Makes a speech policy of a Dia or a CSM and its codec."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_core.data import whole_folder, write_json
from rlhf_core.models import ModelError
from rlhf_plugin_tts.code_stream.modality import MODALITY_FILE
from rlhf_plugin_tts.code_stream.stream import MARKS
from rlhf_plugin_tts.codec_voice.codec import Codec, fetch, link_folder

OTHERS = ("generation_config.json", "preprocessor_config.json", "processor_config.json", "special_tokens_map.json")
OTHERS += ("tokenizer.json", "tokenizer_config.json", "spiece.model", "tokenizer.model", "added_tokens.json")
OTHERS += ("chat_template.jinja", "config.json")
KINDS = {
    "dia": "rlhf_plugin_tts.dia.modality:DiaVoice",
    "csm": "rlhf_plugin_tts.csm.modality:CsmVoice",
}
"""Model type -> its voice."""
TITLES = {"parler_tts": "Parler-TTS", "dia": "Dia", "csm": "CSM"}


def make_stream_voice(
    kind: str, model: str, codec: str, output: Path, *, voice: str = "", learn: str = "all"
) -> dict[str, Any]:
    """Write a folder with weights, codec, tokenizer and ``modality.json``; weights are linked where that is possible.

    Args:
        kind: one of ``KINDS``.
        model: folder or hub id.
        codec: folder or hub id of its codec in Hugging Face form.
        output: a new folder.
        voice: CSM's speaker of prompts that name none.
        learn: ``all`` codebooks get gradients, or the ``first`` alone.

    Raises:
        ModelError: one of them is not there, or they do not fit together.
        ConfigError: the folder exists, or Dia is given a voice.
    """
    from transformers import AutoTokenizer

    if voice and kind == "dia":
        raise ConfigError("--voice is not for Dia", why="it takes no description", fix="leave it out")
    if voice and not voice.isdecimal():
        raise ConfigError(
            f"--voice {voice!r} is not a speaker's number", why="CSM takes no description", fix="--voice 0"
        )
    if output.exists():
        raise ConfigError(f"--output {output} exists", fix="name a new folder")
    weights, sounds = fetch(model, "model"), fetch(codec, "codec")
    described = read_model_config(weights, model, kind)
    Codec(sounds)
    place, _, name = KINDS[kind].partition(":")
    voice_class: Any = getattr(import_module(place), name)
    with whole_folder(output) as aside:
        link_folder(weights, aside)
        for other in OTHERS:
            (aside / other).unlink(missing_ok=True)  # a link: written anew, the model's own must not change
        link_folder(sounds, aside / "codec")
        AutoTokenizer.from_pretrained(str(weights)).save_pretrained(str(aside / voice_class.TOKENIZERS[0]))
        write_json(aside / "config.json", {**described, "learned_codebooks": learn})
        write_json(aside / MODALITY_FILE, {"modality": kind, "voice": voice})
        layout = voice_class.laid_out(voice_class.config_class.from_pretrained(aside))
        tokenizer = stream_tokenizer(layout.codes)
        tokenizer.save_pretrained(aside)
        made = voice_class(aside, tokenizer)
    codes = len(layout.delays) * made.codec.size
    return {"output": str(output), "codec": made.codec.family, "codes": codes, "rate": made.codec.rate}


def read_model_config(weights: Path, model: str, kind: str) -> dict[str, Any]:
    """``config.json`` of a model of that kind.

    Raises:
        ModelError: there is none, or it is of another kind.
    """
    file = weights / "config.json"
    described: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if described.get("model_type") != kind:
        raise ModelError(f"'{model}' is a {described.get('model_type')}, not {TITLES[kind]}", fix="another --like")
    return described


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

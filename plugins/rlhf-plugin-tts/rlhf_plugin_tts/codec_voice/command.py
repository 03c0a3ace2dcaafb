"""`rlhf tts voice`: a speech policy out of a language model and a codec."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import emit_json
from rlhf_core.config import ConfigError

LIKE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("like.toml").read_text())
"""Settings of known families; ``rlhf tts voice --like``."""


STREAMS = ("csm", "dia", "parler")
"""Models of several codebooks, whose folders say their tokens themselves."""


@click.command()
@click.option("--model", required=True, metavar="M", help="Language model with codec ids: a folder or a hub id.")
@click.option("--codec", required=True, metavar="C", help="Its codec in Hugging Face form: a folder or a hub id.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="A new folder.")
@click.option("--like", type=click.Choice(sorted((*LIKE, *STREAMS))), help="Tokens and prompt of a known family.")
@click.option("--token", metavar="NAME", help="Name of the token of code n, such as '<|s_{}|>'.")
@click.option("--first", type=click.IntRange(0), metavar="ID", help="Id of the token of code 0, in place of --token.")
@click.option("--codebooks", type=click.IntRange(1), default=1, show_default=True, help="Tokens of one frame.")
@click.option("--prompt", metavar="TEXT", help="What the model is given; {text} is what is said, {voice} the voice.")
@click.option("--voice", metavar="TEXT", help="The {voice} of prompts without one.")
@click.option("--end", metavar="NAME", help="Name of the token that ends speech. Default: the tokenizer's EOS.")
@click.option(
    "--learn", type=click.Choice(["all", "first"]), help="csm, dia, parler: codebooks that learn. Default: all."
)
@click.option("--description-tokenizer", metavar="T", help="Parler: of descriptions. Default: the text encoder's.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def voice(model: str, codec: str, output: Path, like: str | None, end: str | None, as_json: bool, **flags: Any) -> None:
    """Make a speech policy: of a causal language model that speaks codec ids (Llasa, NeuTTS and others), or of a
    Parler-TTS, Dia or CSM.

    \b
    rlhf tts voice --model HKUSTAudio/Llasa-1B --codec XCODEC2 --like llasa --output llasa
    rlhf tts voice --model nari-labs/Dia-1.6B-0626 --codec descript/dac_44khz --like dia --output dia
    rlhf tts voice --model lm --codec dac --token '<a{}>' --prompt 'say: {text}<speak>' --output my-voice
    """
    make = _codec_voice if like not in STREAMS else _stream
    result = make(model, codec, output, like, end, flags)
    if as_json:
        emit_json(result)
        return
    click.echo(f"{output}: {result['codes']} codes of {result['codec']}, {result['rate']} samples a second")
    click.echo(f"rlhf generate --prompt 'Close the door.' --model {output} --out said.jsonl")


def _codec_voice(
    model: str, codec: str, output: Path, like: str | None, end: str | None, flags: dict[str, Any]
) -> dict[str, Any]:
    from rlhf_plugin_tts.codec_voice.make import make_voice

    if wrong := next((n for n in ("learn", "description_tokenizer") if flags.pop(n)), None):
        raise ConfigError(
            f"--{wrong.replace('_', '-')} is for {'Parler-TTS' if wrong != 'learn' else ', '.join(STREAMS)}",
            fix="leave it out, or --like",
        )
    family = dict(LIKE.get(like or "", {}))
    ends = end or family.pop("end", None)
    family.pop("end", None)
    changed = {name: value for name, value in flags.items() if value is not None}
    if "first" in changed:
        family.pop("token", None)
    return make_voice(model, codec, output, ends, {**family, **changed})


def _stream(
    model: str, codec: str, output: Path, like: str | None, end: str | None, flags: dict[str, Any]
) -> dict[str, Any]:
    from rlhf_plugin_tts.code_stream.make import make_stream_voice

    refused = {**flags, "end": end, "codebooks": None if flags["codebooks"] == 1 else flags["codebooks"]}
    if wrong := next((n for n in ("token", "first", "codebooks", "prompt", "end") if refused[n] is not None), None):
        raise ConfigError(f"--{wrong} is not for --like {like}", why="the model's folder says it", fix="leave it out")
    tokenizer = flags["description_tokenizer"]
    if tokenizer is not None and like != "parler":
        raise ConfigError("--description-tokenizer is for Parler-TTS", fix="leave it out")
    named: dict[str, Any] = {"voice": flags["voice"] or "", "learn": flags["learn"] or "all", "descriptions": tokenizer}
    return make_stream_voice(str(like), model, codec, output, **named)

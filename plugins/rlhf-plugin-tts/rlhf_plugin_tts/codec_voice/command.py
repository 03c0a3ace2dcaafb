"""`rlhf tts voice`: a speech policy out of a language model and a codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlhf_plugin_tts.codec_voice.likes import LIKE


@click.command()
@click.option("--model", required=True, metavar="M", help="Language model with codec ids: a folder or a hub id.")
@click.option("--codec", required=True, metavar="C", help="Its codec in Hugging Face form: a folder or a hub id.")
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="A new folder.")
@click.option("--like", type=click.Choice(sorted((*LIKE, "parler"))), help="Tokens and prompt of a known family.")
@click.option("--token", metavar="NAME", help="Name of the token of code n, such as '<|s_{}|>'.")
@click.option("--first", type=click.IntRange(0), metavar="ID", help="Id of the token of code 0, in place of --token.")
@click.option("--codebooks", type=click.IntRange(1), default=1, show_default=True, help="Tokens of one frame.")
@click.option("--prompt", metavar="TEXT", help="What the model is given; {text} is what is said, {voice} the voice.")
@click.option("--voice", metavar="TEXT", help="The {voice} of prompts without one.")
@click.option("--end", metavar="NAME", help="Name of the token that ends speech. Default: the tokenizer's EOS.")
@click.option(
    "--learn", type=click.Choice(["all", "first"]), help="Parler: codebooks that get gradients. Default: all."
)
@click.option("--description-tokenizer", metavar="T", help="Parler: of descriptions. Default: the text encoder's.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def voice(model: str, codec: str, output: Path, like: str | None, end: str | None, as_json: bool, **asked: Any) -> None:
    """Make a speech policy of a causal language model that speaks codec ids (Llasa, NeuTTS and others).

    \b
    rlhf tts voice --model HKUSTAudio/Llasa-1B --codec XCODEC2 --like llasa --output llasa
    rlhf tts voice --model lm --codec dac --token '<a{}>' --prompt 'say: {text}<speak>' --output my-voice
    """
    from rlhf_core.sdk import emit_json, quiet_libraries, set_up_logging

    set_up_logging()
    quiet_libraries()
    result = (_parler if like == "parler" else _codec_voice)(model, codec, output, like, end, asked)
    if as_json:
        emit_json(result)
        return
    click.echo(f"{output}: {result['codes']} codes of {result['codec']}, {result['rate']} samples a second")
    click.echo(f"rlhf generate --prompt 'Close the door.' --model {output} --out said.jsonl")


def _codec_voice(
    model: str, codec: str, output: Path, like: str | None, end: str | None, asked: dict[str, Any]
) -> dict[str, Any]:
    from rlhf_core.api import ConfigError
    from rlhf_plugin_tts.codec_voice.make import make_voice

    if wrong := next((n for n in ("learn", "description_tokenizer") if asked.pop(n)), None):
        raise ConfigError(f"--{wrong.replace('_', '-')} is for Parler-TTS", fix="leave it out, or --like parler")
    known = dict(LIKE.get(like or "", {}))
    ends = end or known.pop("end", None)
    known.pop("end", None)
    given = {name: value for name, value in asked.items() if value is not None}
    if "first" in given:
        known.pop("token", None)
    return make_voice(model, codec, output, ends, {**known, **given})


def _parler(
    model: str, codec: str, output: Path, like: str | None, end: str | None, asked: dict[str, Any]
) -> dict[str, Any]:
    from rlhf_core.api import ConfigError
    from rlhf_plugin_tts.parler.make import make_parler

    given = {**asked, "end": end, "codebooks": None if asked["codebooks"] == 1 else asked["codebooks"]}
    if wrong := next((n for n in ("token", "first", "codebooks", "prompt", "end") if given[n] is not None), None):
        raise ConfigError(f"--{wrong} is not for Parler-TTS", why="its folder says it", fix="leave it out")
    tokenizer, learn = asked["description_tokenizer"], asked["learn"] or "all"
    return make_parler(model, codec, output, voice=asked["voice"] or "", descriptions=tokenizer, learn=learn)

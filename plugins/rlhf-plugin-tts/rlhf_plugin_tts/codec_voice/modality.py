"""A causal language model with codec ids among its tokens, as a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError, Media
from rlhf_core.models import ModelError
from rlhf_plugin_tts.codec_voice.clips import CodecClips
from rlhf_plugin_tts.codec_voice.codec import Codec, link_folder
from rlhf_plugin_tts.codec_voice.description import MODALITY_FILE, CodecVoiceDescription, read_description
from rlhf_plugin_tts.turns import said_and_described


class CodecVoice:
    """The modality of a folder that ``rlhf tts voice`` wrote, or that was described by hand."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.description = read_description(folder)
        self.codec = Codec(folder / self.description.codec)
        self.number_of = code_numbers(self.description, self.codec, tokenizer)
        marks = (getattr(tokenizer, "added_tokens_decoder", None) or {}).values()
        self._marks = {mark.content for mark in marks if mark.content.strip()}
        self.clips = CodecClips(self.codec, f"{self.description.codebooks} {sorted(self.number_of.items())}")

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        said, voice = said_and_described(messages)
        where = f"prompt {said[:40]!r}"
        for text in (said, voice or ""):
            if mark := next((m for m in self._marks if m in text), None):
                raise DatasetError(
                    f"a prompt holds {mark!r}, the name of a token", where=where, fix="say it in other words"
                )
        names_voice = "{voice}" in self.description.prompt
        if voice is not None and not names_voice:
            raise DatasetError(
                "this voice takes no description",
                where=where,
                why=f"'prompt' of {MODALITY_FILE} has no place {{voice}}",
                fix="leave the system turn out, or --set dataset.descriptions=false",
            )
        if voice is None and names_voice and not self.description.voice:
            raise DatasetError("this voice needs a description", where=where, fix="give a system turn with one")
        before, _, after = self.description.prompt.partition("{text}")
        named = voice or self.description.voice
        return f"{before.replace('{voice}', named)}{said}{after.replace('{voice}', named)}"

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of the prompt; the marks that ``modality.json`` writes are control tokens."""
        return list(self.tokenizer.encode(self.prompt_text(messages), add_special_tokens=False))

    def completion_text(self, ids: Sequence[int]) -> str:
        """Names of the tokens with blanks between them."""
        end = self.tokenizer.eos_token_id
        spoken = ids[:-1] if len(ids) and ids[-1] == end else ids
        return " ".join(self.tokenizer.convert_ids_to_tokens([int(i) for i in spoken]))

    def completion_ids(self, text: str) -> list[int]:
        names, vocabulary = text.split(), self.tokenizer.get_vocab()
        if unknown := next((name for name in names if name not in vocabulary), None):
            raise DatasetError(
                f"{unknown!r} is not a token of this voice",
                where=f"completion {text[:40]!r}",
                fix="a completion of speech is its tokens, as rlhf generate writes them",
            )
        return [vocabulary[name] for name in names]

    def frames(self, completion_ids: Sequence[int]) -> list[list[int]]:
        """Codes of whole frames; tokens that are no code, or not of the codebook whose turn it is, are left out."""
        count, size = self.description.codebooks, self.codec.size
        frames: list[list[int]] = []
        frame: list[int] = []
        for token in completion_ids:
            number = self.number_of.get(int(token))
            if number is None or number // size != len(frame):
                if number is None or number // size:
                    continue
                frame = []
            frame.append(number % size)
            if len(frame) == count:
                frames.append(frame)
                frame = []
        return frames

    def wave(self, completion_ids: Sequence[int]) -> Any:
        return self.clips.wave(self.frames(completion_ids))

    def media(self, completion_ids: Sequence[int]) -> tuple[Media, ...]:
        return self.clips.media(completion_ids, self.frames(completion_ids))

    def save(self, folder: Path) -> None:
        """``modality.json`` and the codec, beside a trained model."""
        text = self.description.model_copy(update={"codec": "codec"}).model_dump_json(indent=1, exclude_none=True)
        (folder / MODALITY_FILE).write_text(text + "\n")
        link_folder(self.codec.folder, folder / "codec")


def code_numbers(described: CodecVoiceDescription, codec: Codec, tokenizer: Any) -> dict[int, int]:
    """Token id -> number of its code."""
    wanted = described.codebooks * codec.size
    if described.codebooks > codec.codebooks:
        raise ModelError(
            f"'{codec.folder}' has {codec.codebooks} codebooks, the voice speaks {described.codebooks}",
            fix="another codec, or fewer codebooks",
        )
    if described.first is not None:
        count = len(tokenizer) - described.first
        ids = range(described.first, described.first + wanted)
        which = f"from id {described.first} on"
    else:
        assert described.token is not None
        before, after = described.token.split("{}")
        numbers: dict[int, int] = {}
        for name, token in tokenizer.get_vocab().items():
            digits = name.removeprefix(before).removesuffix(after)
            if digits.isdecimal() and f"{before}{int(digits)}{after}" == name:
                numbers[int(digits)] = token
        count, which = len(numbers), f"named like {described.token}"
        ids = [numbers[n] for n in range(wanted) if n in numbers]
    exact = described.token is not None
    if len(ids) != wanted or count < wanted or (exact and count != wanted):
        raise ModelError(
            f"codec and model do not fit together: the codec has {wanted} codes, the model {count} tokens {which}",
            where=str(codec.folder),
            why=f"{described.codebooks} codebooks of {codec.size} codes",
            fix="give the codec that the model was trained with",
        )
    return {int(token): number for number, token in enumerate(ids)}

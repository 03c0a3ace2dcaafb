"""Parler-TTS as a policy: description and text become one prompt, the delayed codes a clip."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.api import DatasetError, Media, ModelError
from rlhf_plugin_tts.codec_voice.clips import CodecClips
from rlhf_plugin_tts.codec_voice.codec import Codec, link_folder
from rlhf_plugin_tts.parler import stream as _registers
from rlhf_plugin_tts.parler.config import MARKS, ParlerConfig
from rlhf_plugin_tts.turns import said_and_described

del _registers  # imported so that transformers knows the model
NAME, MODALITY_FILE = "parler-tts", "modality.json"
TOKENIZERS = ("text-tokenizer", "description-tokenizer")


class ParlerVoice:
    """The modality of a folder that ``rlhf tts voice --like parler`` wrote.

    Args:
        folder: of the model; holds ``codec``, ``text-tokenizer`` and ``description-tokenizer``.
        tokenizer: of the stream.

    Raises:
        ModelError: one of them is missing, or the codec has other codes than the model.
    """

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        from transformers import AutoTokenizer

        self.folder, self.tokenizer = folder, tokenizer
        self.settings: dict[str, Any] = json.loads((folder / MODALITY_FILE).read_text())
        self.config: Any = ParlerConfig.from_pretrained(folder)
        self.codec = Codec(folder / "codec")
        inner = self.config.decoder
        books, size = inner.num_codebooks, self.codec.size
        if self.codec.codebooks < books or inner.eos_token_id < size:
            raise ModelError(
                f"codec and model of '{folder}' do not fit together",
                why=f"the model has {books} codebooks of {inner.eos_token_id} codes, the codec {self.codec.codebooks} "
                f"of {size}",
                fix="give the codec that the model was trained with",
            )
        try:
            self.text, self.described = (AutoTokenizer.from_pretrained(folder / name) for name in TOKENIZERS)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"'{folder}' has no {' and '.join(TOKENIZERS)}", why=str(error).splitlines()[0], fix="rlhf tts voice"
            ) from error
        self.clips = CodecClips(self.codec, f"{books} {inner.eos_token_id}")

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt for people.

        Raises:
            DatasetError: other turns, nothing to say, or no description where the voice has none of its own.
        """
        said, voice = self._parts(messages)
        return f"{voice} <sep> {said} <start>"

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Pieces of the description and of the text, between the marks of the stream."""
        said, voice = self._parts(messages)
        _, sep, start, _ = self.marks
        first = self.config.first_piece
        about, text = (
            [int(i) + first for i in t(x).input_ids] for t, x in ((self.described, voice), (self.text, said))
        )
        return [*about, sep, *text, start]

    def _parts(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        said, voice = said_and_described(messages)
        voice = voice or str(self.settings.get("voice") or "")
        if not voice:
            raise DatasetError(
                "Parler-TTS needs a description of the voice",
                where=f"prompt {said[:40]!r}",
                fix='give a system turn with one, or "voice" in modality.json',
            )
        return said, voice

    @property
    def marks(self) -> range:
        """Ids of ``<end>``, ``<sep>``, ``<start>`` and ``<pad>``."""
        first = self.config.decoder.vocab_size + 1
        return range(first, first + len(MARKS))

    def completion_text(self, ids: Sequence[int]) -> str:
        """Names of the codes with blanks between them."""
        return " ".join(f"c{int(i)}" for i in ids if int(i) < self.marks[0])

    def completion_ids(self, text: str) -> list[int]:
        """The ids of such names.

        Raises:
            DatasetError: one is no code of this model.
        """
        ids = [int(name[1:]) if name[:1] == "c" and name[1:].isdecimal() else -1 for name in text.split()]
        if any(not 0 <= i < self.marks[0] for i in ids):
            raise DatasetError(
                "a completion holds what is no code of this voice",
                where=f"completion {text[:40]!r}",
                fix="a completion of speech is its codes, as rlhf generate writes them",
            )
        return ids

    def frames(self, completion_ids: Sequence[int]) -> list[list[int]]:
        """Codes of whole frames, the delay undone; frames with a code that the codec has not are left out."""
        books, end = self.config.decoder.num_codebooks, self.config.decoder.eos_token_id
        ids = [int(i) for i in completion_ids]
        frames: list[list[int]] = []
        for frame in range(len(ids) // books):
            places = [(frame + k) * books + k for k in range(books)]
            if places[-1] >= len(ids) or ids[places[0]] == end:
                break
            codes = [ids[place] for place in places]
            if max(codes) < self.codec.size:
                frames.append(codes)
        return frames

    def wave(self, completion_ids: Sequence[int]) -> Any:
        """Samples, float32; silence if there is no whole frame."""
        return self.clips.wave(self.frames(completion_ids))

    def media(self, completion_ids: Sequence[int]) -> tuple[Media, ...]:
        """The completion's sound; a file of the same tokens is written once."""
        return self.clips.media(completion_ids, self.frames(completion_ids))

    def save(self, folder: Path) -> None:
        """``modality.json``, codec and tokenizers, beside a trained model."""
        (folder / MODALITY_FILE).write_text(json.dumps(self.settings) + "\n")
        for name in ("codec", *TOKENIZERS):
            link_folder(self.folder / name, folder / name)

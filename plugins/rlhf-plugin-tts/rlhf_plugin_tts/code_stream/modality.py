"""Voices whose model is a stream of codes: a prompt becomes pieces of texts, the delayed codes a clip."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rlhf_core.data import DatasetError, Media
from rlhf_core.models import ModelError
from rlhf_plugin_tts.code_stream.stream import MARKS
from rlhf_plugin_tts.codec_voice.clips import CodecClips
from rlhf_plugin_tts.codec_voice.codec import Codec, link_folder

MODALITY_FILE = "modality.json"


@dataclass(frozen=True)
class Layout:
    """What a configuration says of the stream."""

    codes: int
    """Ids of a codebook, special ones included."""
    delays: tuple[int, ...]
    """Steps by which each codebook is late."""
    finish: int
    """Code of the first codebook that ends a clip, or of all where ``whole_end``."""
    whole_end: bool = False
    """Whether a clip ends with a frame all of whose codes are ``finish``."""


class StreamVoice:
    """The modality of a folder that ``rlhf tts voice`` wrote."""

    TOKENIZERS: ClassVar[tuple[str, ...]] = ("text-tokenizer",)
    config_class: ClassVar[Any]

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        from transformers import AutoTokenizer

        self.folder, self.tokenizer = folder, tokenizer
        self.settings: dict[str, Any] = json.loads((folder / MODALITY_FILE).read_text())
        self.config: Any = self.config_class.from_pretrained(folder)
        self.layout = self.laid_out(self.config)
        self.codec = Codec(folder / "codec")
        books, size = len(self.layout.delays), self.codec.size
        codes = self.layout.codes if self.layout.whole_end else self.layout.finish
        if self.codec.codebooks < books or codes < size:
            raise ModelError(
                f"codec and model of '{folder}' do not fit together",
                why=f"the model has {books} codebooks of {codes} codes, the codec {self.codec.codebooks} of {size}",
                fix="give the codec that the model was trained with",
            )
        try:
            self.texts: tuple[Any, ...] = tuple(
                AutoTokenizer.from_pretrained(str(folder / name)) for name in self.TOKENIZERS
            )
        except (OSError, ValueError) as error:
            raise ModelError(
                f"'{folder}' has no {' and '.join(self.TOKENIZERS)}",
                why=str(error).splitlines()[0],
                fix="rlhf tts voice",
            ) from error
        self.clips = CodecClips(self.codec, f"{self.layout}")

    @staticmethod
    def laid_out(config: Any) -> Layout:
        raise NotImplementedError

    def pieces(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """Pieces of what is described and of what the decoder reads before the codes."""
        raise NotImplementedError

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        raise NotImplementedError

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Pieces of the description and of the text, between the marks of the stream."""
        described, text = self.pieces(messages)
        _, sep, start, pad = self.marks
        return [*(i + pad + 1 for i in described), sep, *(i + pad + 1 for i in text), start]

    @property
    def marks(self) -> range:
        """Ids of ``<end>``, ``<sep>``, ``<start>`` and ``<pad>``."""
        first = self.layout.codes + 1
        return range(first, first + len(MARKS))

    def completion_text(self, ids: Sequence[int]) -> str:
        return " ".join(f"c{int(i)}" for i in ids if int(i) < self.marks[0])

    def completion_ids(self, text: str) -> list[int]:
        ids = [int(name[1:]) if name[:1] == "c" and name[1:].isdecimal() else -1 for name in text.split()]
        if any(not 0 <= i < self.marks[0] for i in ids):
            raise DatasetError(
                "a completion holds what is not a code of this voice",
                where=f"completion {text[:40]!r}",
                fix="a completion of speech is its codes, as rlhf generate writes them",
            )
        return ids

    def frames(self, completion_ids: Sequence[int]) -> list[list[int]]:
        """Codes of whole frames, the delays undone; frames with a code that the codec has not are left out."""
        layout, books = self.layout, len(self.layout.delays)
        ids = [int(i) for i in completion_ids]
        frames: list[list[int]] = []
        for frame in range(len(ids) // books):
            positions = [(frame + delay) * books + k for k, delay in enumerate(layout.delays)]
            if max(positions) >= len(ids):
                break
            codes = [ids[position] for position in positions]
            if all(code == layout.finish for code in (codes if layout.whole_end else codes[:1])):
                break
            if max(codes) < self.codec.size:
                frames.append(codes)
        return frames

    def wave(self, completion_ids: Sequence[int]) -> Any:
        return self.clips.wave(self.frames(completion_ids))

    def media(self, completion_ids: Sequence[int]) -> tuple[Media, ...]:
        return self.clips.media(completion_ids, self.frames(completion_ids))

    def save(self, folder: Path) -> None:
        """``modality.json``, codec and tokenizers, beside a trained model."""
        (folder / MODALITY_FILE).write_text(json.dumps(self.settings) + "\n")
        for name in ("codec", *self.TOKENIZERS):
            link_folder(self.folder / name, folder / name)

"""Parler-TTS as a policy: description and text become one prompt, the delayed codes a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.code_stream.modality import Layout, StreamVoice
from rlhf_plugin_tts.parler import stream as _registers
from rlhf_plugin_tts.parler.config import ParlerConfig
from rlhf_plugin_tts.turns import said_and_described

del _registers  # imported so that transformers knows the model
NAME = "parler-tts"


class ParlerVoice(StreamVoice):
    """The modality of a folder that ``rlhf tts voice --like parler`` wrote."""

    TOKENIZERS: ClassVar[tuple[str, ...]] = ("text-tokenizer", "description-tokenizer")
    config_class: ClassVar[Any] = ParlerConfig

    @staticmethod
    def laid_out(config: Any) -> Layout:
        """Codebook k is k steps late."""
        inner = config.decoder
        return Layout(inner.vocab_size, tuple(range(inner.num_codebooks)), inner.eos_token_id)

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        said, voice = self._parts(messages)
        return f"{voice} <sep> {said} <start>"

    def pieces(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        said, voice = self._parts(messages)
        text, described = self.texts
        return [int(i) for i in described(voice).input_ids], [int(i) for i in text(said).input_ids]

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

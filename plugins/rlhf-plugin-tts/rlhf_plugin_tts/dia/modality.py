"""Dia as a policy: the text is the prompt, the delayed codes a clip."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.code_stream.modality import Layout, StreamVoice
from rlhf_plugin_tts.dia.stream import DiaStreamConfig
from rlhf_plugin_tts.turns import said_and_described

NAME = "dia"
SPEAKER = "[S1]"


class DiaVoice(StreamVoice):
    """The modality of a folder that ``rlhf tts voice --like dia`` wrote."""

    config_class: ClassVar[Any] = DiaStreamConfig

    @staticmethod
    def laid_out(config: Any) -> Layout:
        """As the configuration has it."""
        inner = config.decoder_config
        return Layout(inner.vocab_size, tuple(config.delay_pattern), inner.eos_token_id)

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """What is said, by the first speaker unless the text says who.

        Raises:
            DatasetError: other turns, nothing to say, or a description.
        """
        said, voice = said_and_described(messages)
        if voice is not None:
            raise DatasetError(
                "Dia takes no description of the voice",
                where=f"prompt {said[:40]!r}",
                why="its encoder reads only the text and the speaker marks [S1] and [S2]",
                fix="leave the system turn out, or --set dataset.descriptions=false",
            )
        return said if re.match(r"\s*\[S\d\]", said) else f"{SPEAKER} {said}"

    def pieces(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """All of it is what the encoder reads."""
        (text,) = self.texts
        return [int(i) for i in text(self.prompt_text(messages), add_special_tokens=False).input_ids], []

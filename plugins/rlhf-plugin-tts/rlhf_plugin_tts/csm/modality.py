"""CSM as a policy: a speaker's number and the text are the prompt, frames of codes a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlhf_core.data import DatasetError
from rlhf_plugin_tts.code_stream.modality import Layout, StreamVoice
from rlhf_plugin_tts.csm.stream import CsmStreamConfig
from rlhf_plugin_tts.turns import said_and_described

NAME = "csm"
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"


class CsmVoice(StreamVoice):
    """The modality of a folder that ``rlhf tts voice --like csm`` wrote."""

    config_class: ClassVar[Any] = CsmStreamConfig

    @staticmethod
    def laid_out(config: Any) -> Layout:
        """Frame after frame."""
        return Layout(config.vocab_size, (0,) * config.num_codebooks, config.codebook_eos_token_id, whole_end=True)

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """As CSM's chat template writes a turn without sound: ``[speaker]text``.

        Raises:
            DatasetError: other turns, nothing to say, names of control tokens in it, or a description that is no
                speaker's number.
        """
        said, voice = said_and_described(messages)
        speaker = str(self.settings.get("voice") or "0") if voice is None else voice.strip()
        if not speaker.isdecimal():
            raise DatasetError(
                f"{speaker[:40]!r} is not a speaker of CSM",
                where=f"prompt {said[:40]!r}",
                why="it knows speakers by number and takes no description",
                fix="a system turn such as 0, or none (--set dataset.descriptions=false)",
            )
        (text,) = self.texts
        if mark := next((m for m in text.all_special_tokens if m in said), None):
            raise DatasetError(
                f"a prompt holds {mark!r}, the name of a token", where=f"prompt {said[:40]!r}", fix="other words"
            )
        return f"{BEGIN}[{speaker}]{said}{END}"

    def pieces(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
        """All of it is what the backbone reads before the codes."""
        (text,) = self.texts
        return [], [int(i) for i in text(self.prompt_text(messages), add_special_tokens=False).input_ids]

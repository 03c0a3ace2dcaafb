"""What codes sound like: a codec's waves, each kept as a file that is named after all that decides it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.data import Media
from rlhf_plugin_tts.codec_voice.codec import Codec
from rlhf_plugin_tts.sound_files import SoundFiles

SILENCE = 0.04
"""Seconds of silence that a completion without a whole frame is."""


class CodecClips:
    def __init__(self, codec: Codec, codes: str) -> None:
        self.codec, self.files = codec, SoundFiles()
        self._digest = hashlib.sha256(f"{codec.digest} {codes}".encode()).hexdigest()[:16]

    def wave(self, frames: Sequence[Sequence[int]]) -> Any:
        """Samples, float32; silence if there is no whole frame."""
        return self.codec.decode(frames) if frames else np.zeros(round(SILENCE * self.codec.rate), np.float32)

    def media(self, completion_ids: Sequence[int], frames: Sequence[Sequence[int]]) -> tuple[Media, ...]:
        """The sound of a completion whose frames these are; a file of the same tokens is written once."""
        name = hashlib.sha256(f"{self._digest} {' '.join(map(str, completion_ids))}".encode()).hexdigest()[:32]
        return (self.files.keep(name, lambda: self.wave(frames), self.codec.rate),)

"""Pocket-voice as a policy: text and a description become phones, and its codes become FLAC files."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data import Media
from rlhf_core.models import ModelError
from rlhf_plugin_tts.pocket_voice.analysis import HOP, RATE
from rlhf_plugin_tts.pocket_voice.codec import CODEC_FILE, CONFIG_FILE, EXCITATIONS, PocketCodec, frames_of
from rlhf_plugin_tts.pocket_voice.frontend import prompt_text
from rlhf_plugin_tts.sound_files import SoundFiles
from rlhf_plugin_tts.turns import said_and_described

NAME = "pocket-voice"
MODALITY_FILE = "modality.json"


def weights_path() -> Path:
    folder = Path(__file__).parent / "weights"
    if not (folder / "model.safetensors").is_file():
        raise ModelError(
            "this build of rlhf-plugin-tts carries no voice",
            where=str(folder),
            fix="build one with: python -m rlhf_plugin_tts.pocket_voice.build.train; and give its folder as model.path",
        )
    return folder


class PocketVoice:
    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder, self.codec = folder, PocketCodec.load(folder)
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        self.token_of = {i: token for token, i in vocabulary.items()}
        have = tuple(sum(t[:1] == kind and t[1:].isdecimal() for t in vocabulary) for kind in "ec")
        if have != (EXCITATIONS, len(self.codec.codebook)):
            raise ModelError(
                f"codec and model of '{folder}' do not fit together",
                why=f"the model's vocabulary has {have[0]} codes of the excitation and {have[1]} of the spectrum, "
                f"the codec {EXCITATIONS} and {len(self.codec.codebook)}",
                fix=f"copy {CONFIG_FILE} and {CODEC_FILE} of the model that it was trained from",
            )
        self._files = {name: (folder / name).read_bytes() for name in (CONFIG_FILE, CODEC_FILE)}
        self._digest = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:16]
        self.sounds = SoundFiles()

    def prompt_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Style words and phones; the system turn is the description of the voice, the user's turn is what is said."""
        text, voice = said_and_described(messages)
        where = f"prompt {text[:40]!r}"
        return prompt_text(text, "plain" if voice is None else voice, where)

    def wave(self, completion_ids: Sequence[int]) -> Any:
        """Samples of a completion at 16 kHz, float32; a frame of silence if it holds no codes."""
        wave = self.codec.decode(frames_of(self.token_of.get(int(i), "") for i in completion_ids))
        return wave if len(wave) else np.zeros(4 * HOP, np.float32)

    def media(self, completion_ids: Sequence[int]) -> tuple[Media, ...]:
        name = hashlib.sha256(f"{self._digest} {' '.join(map(str, completion_ids))}".encode()).hexdigest()[:32]
        return (self.sounds.keep(name, lambda: self.wave(completion_ids), RATE),)

    def save(self, folder: Path) -> None:
        """``modality.json``, the codec and the licences of the voice, beside a trained model."""
        (folder / MODALITY_FILE).write_text(json.dumps({"modality": NAME}) + "\n")
        for name, content in self._files.items():
            (folder / name).write_bytes(content)
        for licence in self.folder.glob("LICENSE*"):
            if not (folder / licence.name).exists():
                shutil.copyfile(licence, folder / licence.name)

"""Clips for the tests: voices that are made here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from rlhf_core.data import Media, Prompt
from rlhf_core.rewards import Sample

sys.path.append(str(Path(__file__).parent))  # for untrained_voices
RATE = 16000
Voice = Callable[..., Path]
Speak = Callable[..., Sample]


@pytest.fixture
def voice(tmp_path: Path) -> Voice:
    """``voice("a.wav", hz=150, noise=0.1)``: a file with syllables of twelve harmonics."""

    def write(
        name: str, hz: float = 150, noise: float = 0.05, seconds: float = 2.0, swing: float = 2.0, rate: int = RATE
    ) -> Path:
        time = np.arange(round(seconds * rate)) / rate
        pitch = hz * 2 ** (swing / 12 * np.sin(2 * np.pi * 0.9 * time))
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        sound = sum(np.sin(k * phase) / k for k in range(1, 13)) * (0.05 + np.square(np.sin(np.pi * 3 * time)))
        sound = 0.1 * sound + 0.1 * noise * np.random.default_rng(len(name)).standard_normal(len(time))
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, sound, rate)
        return path

    return write


@pytest.fixture
def spoken() -> Speak:
    """``spoken(path, "the text")``: a sample with that sound."""

    def make(path: Path | str, text: str = "a nice day", **of_prompt: Any) -> Sample:
        prompt = Prompt("speech/0", ({"role": "user", "content": text},), **of_prompt)
        return Sample(prompt, text, media=(Media("audio", path=str(path)),))

    return make

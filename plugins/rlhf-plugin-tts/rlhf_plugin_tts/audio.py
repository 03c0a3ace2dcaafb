"""Audio files as mono samples; every way in which a clip can be unusable has a sentence."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.rewards import Sample

Samples = npt.NDArray[np.float32]
MOST_SECONDS = 600.0
"""Longer files are refused unread."""
LEAST_RATE = 4000
"""Samples per second; below it the header is wrong, or nothing above 2 kHz is left of the speech."""


class ClipError(Exception):
    """A clip that cannot be measured; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    samples: Samples
    """Shape ``[N]``; full scale is -1 to 1."""
    rate: int
    """Samples per second."""
    clipped: float = 0.0
    """Share of the samples, over all channels of the file, that stand at full scale."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def at(self, rate: int) -> Clip:
        """The same clip at another sample rate (soxr, high quality)."""
        if rate == self.rate:
            return self
        import soxr

        return Clip(soxr.resample(self.samples, self.rate, rate, quality="HQ"), rate, self.clipped)


def read_clip(source: Sample | str | Path, most_seconds: float = MOST_SECONDS) -> Clip:
    """Read a WAV, FLAC, OGG or MP3 file; channels are averaged."""
    import soundfile

    path = audio_path(source) if isinstance(source, Sample) else Path(source)
    if not os.path.isfile(path):  # which also says no of a name that the system refuses
        raise ClipError(f"'{path}' cannot be read: there is no such file")
    try:
        with soundfile.SoundFile(str(path)) as file:
            if file.frames > most_seconds * file.samplerate:
                setting = "" if most_seconds == MOST_SECONDS else ", the setting max_seconds"
                lasts = f"lasts {file.frames / file.samplerate:.0f} s, more than {most_seconds:g}{setting}"
                raise ClipError(f"'{path}' {lasts}")
            check_complete(file.extra_info, str(path))
            frames_NC: Any = file.read(dtype="float32", always_2d=True)
            rate = int(file.samplerate)
    except (soundfile.SoundFileError, OSError, RuntimeError, ValueError, MemoryError) as error:
        raise ClipError(f"'{path}' cannot be read: {error}") from error
    if rate < LEAST_RATE:
        raise ClipError(f"'{path}' has {rate} samples a second, too few for speech; at least {LEAST_RATE} are needed")
    return clip_of(frames_NC, rate, str(path))


def check_complete(header: str, label: str) -> None:
    """Refuse a WAV file that ends before its header says: libsndfile reads half a copy as a whole."""
    length = re.search(r"^data : (\d+) \(should be (\d+)\)", header, re.MULTILINE)
    if length and int(length[2]) < int(length[1]) < STREAMED:
        raise ClipError(f"'{label}' is cut off: {length[2]} of {length[1]} bytes of sound are there")


def clip_of(frames_NC: Any, rate: int, label: str = "the clip") -> Clip:
    """A clip of samples ``[N]`` or ``[N, channels]``."""
    frames_NC = np.asarray(frames_NC, np.float32)
    if frames_NC.size == 0:
        raise ClipError(f"{label} holds no samples")
    if not np.isfinite(frames_NC).all():
        raise ClipError(f"{label} holds samples that are not finite")
    clipped = float((np.abs(frames_NC) >= FULL_SCALE).mean())
    mono_N = frames_NC if frames_NC.ndim == 1 else frames_NC.mean(axis=1)
    if np.abs(mono_N).max() < CANCELLED * np.abs(frames_NC).max():
        raise ClipError(f"{label} is silent when its channels are averaged: they cancel each other")
    return Clip(np.ascontiguousarray(mono_N, np.float32), rate, clipped)


CANCELLED = 0.001
"""Of the channels' level: below it their mean is what is left of two opposite ones."""
STREAMED = 2**31 - 2**16
"""Bytes; programs that write WAV to a pipe name such a length, or a larger one, since they do not know it."""
FULL_SCALE = 32766 / 32768
"""From here on a 16-bit sample is taken for clipped."""


def audio_path(sample: Sample) -> Path:
    sounds = [m for m in sample.media if m.kind == "audio"]
    if len(sounds) != 1:
        raise ClipError(f"the completion of '{sample.prompt.id}' has {len(sounds) or 'no'} sounds, expected one")
    if not sounds[0].path:
        raise ClipError(f"the sound of '{sample.prompt.id}' has a digest and no path")
    return Path(sounds[0].path)

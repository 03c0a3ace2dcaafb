"""FLAC files of sampled completions in a folder that does not grow without end."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_core.data import Media

MOST_BYTES = 512 * 1024 * 1024
EVERY = 256
"""Files written between two looks at the folder's size."""


def default_folder() -> Path:
    """``$RLHF_AUDIO``, by default ``rlhf-audio-UID`` among the temporary files."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(os.environ.get("RLHF_AUDIO") or Path(tempfile.gettempdir()) / f"rlhf-audio-{user}").expanduser()


class SoundFiles:
    """Writes each sound once, under a name that its maker chooses; the oldest go when there are too many bytes."""

    def __init__(self, folder: Path | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes, self._written = folder or default_folder(), most_bytes, 0

    def keep(self, name: str, make: Callable[[], Any], rate: int) -> Media:
        """A reference to the sound; ``make`` gives its samples in [-1, 1] if the file is not there yet."""
        import soundfile

        file = self.folder / f"{name}.flac"
        try:
            content = file.read_bytes()
            os.utime(file)  # in use again: not among the oldest
            with soundfile.SoundFile(io.BytesIO(content)) as sound:
                seconds = sound.frames / sound.samplerate
        except (OSError, soundfile.SoundFileError):  # not there, removed by another run a moment ago, or damaged
            self.folder.mkdir(parents=True, exist_ok=True)
            made = io.BytesIO()
            wave = make()
            soundfile.write(made, wave, rate, format="FLAC", subtype="PCM_16")
            content, seconds = made.getvalue(), len(wave) / rate
            aside = file.with_suffix(f".{os.getpid()}.part")
            aside.write_bytes(content)
            os.replace(aside, file)
            self._bound()
        digest = hashlib.sha256(content).hexdigest()
        return Media("audio", str(file), digest, "audio/flac", sample_rate=rate, seconds=round(seconds, 4))

    def _bound(self) -> None:
        self._written += 1
        if self._written % EVERY != 1:
            return
        files: list[tuple[float, int, Path]] = []
        for file in self.folder.glob("*.flac"):
            with contextlib.suppress(FileNotFoundError):  # another run removed it since the folder was listed
                stat = file.stat()
                files.append((stat.st_mtime, stat.st_size, file))
        total = 0
        for _, size, file in sorted(files, reverse=True):
            total += size
            if total > self.most_bytes:
                file.unlink(missing_ok=True)

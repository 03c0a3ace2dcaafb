"""Voices and their scores."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from rlhf_core.data import Media, Prompt
from rlhf_core.rewards import Sample


def flite(name: str, text: str, file: Path, voice: str, features: Mapping[str, float] | None = None) -> Sample:
    """A sentence said by Debian's ``flite``."""
    more = [word for key, value in (features or {}).items() for word in ("--setf", f"{key}={value:.3f}")]
    subprocess.run(["flite", "-voice", voice, *more, "-t", text, "-o", str(file)], check=True)
    prompt = Prompt(name, ({"role": "user", "content": text},))
    return Sample(prompt, text, media=(Media("audio", path=str(file)),))


def cell(row: Mapping[str, float | None], sign: str = "") -> str:
    """A mean with its interval; ``sign`` is "+" for differences."""
    if row["mean"] is None:
        return "-"
    return f"{row['mean']:{sign}.2f} ({row['low']:{sign}.2f} to {row['high']:{sign}.2f})"

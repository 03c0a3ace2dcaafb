"""Voices and their scores."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rlhf_core.data import Media, Prompt
from rlhf_core.rewards import Sample

Z_SCORES = {
    "pitch_variance": (0.30, 25.0, 20.0),
    "hnr": (0.25, 10.0, 2.0),
    "voiced_fraction": (0.20, 0.5, 0.1),
    "energy_dynamics": (0.15, 33.0, 2.5),
    "mfcc_stability": (0.10, 0.14, 0.01),
}
"""Weights that the proxy's source proposes; mean and standard deviation of recorded speech."""
PROPOSED = {
    "weights": {name: weight for name, (weight, _, _) in Z_SCORES.items()},
    "natural": {name: (mean + 3 * std, 1e9, std) for name, (_, mean, std) in Z_SCORES.items()},
    "limit": 6.0,
    "speech_only": False,
}
"""``acoustic_proxy`` as its source proposes it, less 3: a weighted sum of z-scores within +-3 of recorded speech."""
AS_PROPOSED = tuple(f"acoustic_proxy:{key}={json.dumps(value)}" for key, value in PROPOSED.items())
"""The same for commands that take settings of a reward by its name."""


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

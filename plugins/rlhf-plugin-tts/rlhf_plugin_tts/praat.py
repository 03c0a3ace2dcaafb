"""Praat's own pitch analysis through parselmouth (GPL-3.0). Imported only where a setting asks for it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rlhf_core.config import ConfigError
from rlhf_plugin_tts.audio import Samples
from rlhf_plugin_tts.pitch import CEILING_HZ, FLOOR_HZ, HOP_SECONDS, PitchTrack


def praat_pitch(samples: Samples, rate: int) -> PitchTrack:
    """Praat's "To Pitch (ac)" with its defaults and frames of 10 ms; the same as :func:`~.pitch.track_pitch`."""
    try:
        parselmouth: Any = importlib.import_module("parselmouth")
    except ImportError as error:
        raise ConfigError(
            "pitch 'praat' needs parselmouth", fix='pip install "rlhf-plugin-tts[praat]", or pitch=autocorrelation'
        ) from error
    if len(samples) < 3 / FLOOR_HZ * rate or not np.abs(samples).max():
        return PitchTrack(np.zeros(0, np.float32), np.zeros(0, np.float32))
    sound = parselmouth.Sound(samples.astype(np.float64), rate)
    track = sound.to_pitch_ac(time_step=HOP_SECONDS, pitch_floor=FLOOR_HZ, pitch_ceiling=CEILING_HZ)
    hz_T = track.selected_array["frequency"].astype(np.float32)
    strength_T = np.where(hz_T > 0, track.selected_array["strength"], 0).astype(np.float32)
    return PitchTrack(hz_T, strength_T)

"""Acoustic features of a clip at 16 kHz, one function each; NaN where a feature is not defined."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft

from rlhf_plugin_tts.audio import Clip, Samples
from rlhf_plugin_tts.pitch import PitchTrack, track_pitch

Floats = npt.NDArray[np.float32]
RATE = 16000
"""Samples per second at which clips are measured."""
N_FFT, HOP = 512, 160
"""Window (32 ms, Hann) and hop (10 ms) of the spectrum, in samples."""
N_MELS, N_MFCC = 40, 13
SILENCE_DB = 40.0
"""A frame so far below the loudest one is silence."""
LEAST_VOICED = 3
"""Voiced frames that pitch variance and harmonicity need."""
DIP_DB, REACH_DB = 2.0, 25.0
"""A syllable's peak stands so far above the dip before it, and at most so far below the loudest frame."""
BLOCK_SECONDS = 30
"""Longer clips are analysed in blocks, so that memory stays bounded."""


class Analysis:
    """Spectrum and pitch of a clip at 16 kHz, computed when first asked for."""

    def __init__(self, clip: Clip) -> None:
        self.seconds, self.original = clip.seconds, clip.samples
        self.samples: Samples = clip.at(RATE).samples

    @cached_property
    def power(self) -> Floats:
        """Power spectrum ``[T, 257]``."""
        window = _window()
        padded = np.pad(self.samples, (0, max(0, N_FFT - len(self.samples))))
        frames_TW = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
        blocks = [frames_TW[i : i + BLOCK_SECONDS * 100] for i in range(0, len(frames_TW), BLOCK_SECONDS * 100)]
        spectra: list[Any] = [fft.rfft(block * window, axis=-1) for block in blocks]
        return np.concatenate([np.square(s.real) + np.square(s.imag) for s in spectra])

    @cached_property
    def level(self) -> Floats:
        """Level of each frame in dB relative to full scale; -120 at least."""
        mean_T = self.power.sum(axis=1) / (N_FFT * float(np.square(_window()).sum()) / 2)
        return 10 * np.log10(np.maximum(mean_T, 1e-12))

    @cached_property
    def sounding(self) -> npt.NDArray[np.bool_]:
        """Frames that are not silence; none in a clip of zeros."""
        return (self.level > self.level.max() - SILENCE_DB) & (self.level > -119)

    @cached_property
    def track(self) -> PitchTrack:
        return track_pitch(self.samples, RATE)


Source = Clip | Analysis


def pitch_variance(source: Source) -> float:
    """Variance of the pitch over voiced frames, in semitones squared around the median (flat pitch: Mittag et al.
    2021)."""
    track = _analysis(source).track
    hz = track.hz_T[track.voiced]
    return float(np.var(12 * np.log2(hz / np.median(hz)))) if len(hz) >= LEAST_VOICED else float("nan")


def hnr(source: Source) -> float:
    """Harmonic-to-noise ratio: mean of ``10 log10(r / (1 - r))`` over voiced frames, in dB (Boersma 1993, equation
    4)."""
    track = _analysis(source).track
    r = track.strength_T[track.voiced].astype(np.float64)
    if len(r) < LEAST_VOICED:
        return float("nan")
    r = np.clip(r, 1e-6, 1 - 1e-6)
    return float(np.mean(10 * np.log10(r / (1 - r))))


def voiced_fraction(source: Source) -> float:
    """Voiced share of the frames, in [0, 1] (Boersma 1993, voicing threshold 0.45)."""
    track = _analysis(source).track
    return float(track.voiced.mean()) if len(track.hz_T) else 0.0


def energy_dynamics(source: Source) -> float:
    """Dynamic range: 95th less 5th percentile of the level of sounding frames, in dB; 0 of silence (Lo et al. 2019)."""
    analysis = _analysis(source)
    level = analysis.level[analysis.sounding]
    return float(np.percentile(level, 95) - np.percentile(level, 5)) if len(level) else 0.0


def mfcc_stability(source: Source) -> float:
    """``1 / (1 + s)``, ``s`` the standard deviation of the change of MFCCs 1 to 12 between frames (40 mel bands in
    dB)."""
    import librosa

    analysis = _analysis(source)
    sounding_T = analysis.sounding
    if sounding_T.sum() < LEAST_VOICED:
        return float("nan")
    mfcc_CT = librosa.feature.mfcc(S=mel_levels(analysis).T, n_mfcc=N_MFCC)
    both = sounding_T[1:] & sounding_T[:-1]
    change = np.diff(mfcc_CT[1:], axis=1)[:, both]
    return float(1 / (1 + np.sqrt(change.var(axis=1).mean()))) if change.size else float("nan")


def spectral_centroid(source: Source) -> float:
    """Mean centre of gravity of the magnitude spectrum over sounding frames, in Hz (librosa). NaN of silence."""
    analysis = _analysis(source)
    magnitude_TF = np.sqrt(analysis.power[analysis.sounding])
    if not len(magnitude_TF):
        return float("nan")
    import librosa

    return float(librosa.feature.spectral_centroid(S=magnitude_TF.T, sr=RATE, freq=_bins()).mean())


def silence_fraction(source: Source) -> float:
    """Share of frames more than 40 dB below the clip's loudest frame, in [0, 1]; 1 of a clip of zeros."""
    return float(1 - _analysis(source).sounding.mean())


def spectral_flatness(source: Source) -> float:
    """Mean over sounding frames of geometric / arithmetic mean of the power spectrum, in (0, 1] (Dubnov 2004)."""
    analysis = _analysis(source)
    power_TF = analysis.power[analysis.sounding]
    if not len(power_TF):
        return float("nan")
    import librosa

    return float(librosa.feature.spectral_flatness(S=power_TF.T, power=1.0).mean())


def speaking_rate(source: Source) -> float:
    """Syllable nuclei per second: voiced peaks of the level, 2 dB above the dip before (de Jong and Wempe 2009)."""
    analysis = _analysis(source)
    level_T = _smoothed(analysis.level)
    track = analysis.track
    offset = (3 / 75 * RATE - N_FFT) / 2 / HOP  # frames by which the middle of a pitch frame is later
    least, nuclei, dip = level_T.max() - REACH_DB, 0, level_T[0]
    inner = level_T[1:-1]
    peaks = np.flatnonzero((inner > level_T[:-2]) & (inner >= level_T[2:])) + 1
    previous = 0
    for at in peaks:
        dip = level_T[previous : at + 1].min()
        frame = round(at - offset)
        voiced = 0 <= frame < len(track.hz_T) and track.hz_T[frame] > 0
        if voiced and level_T[at] >= least and level_T[at] - dip >= DIP_DB:
            nuclei, previous = nuclei + 1, at
    return nuclei / analysis.seconds


FEATURES: dict[str, Callable[[Source], float]] = {
    f.__name__: f
    for f in (
        pitch_variance,
        hnr,
        voiced_fraction,
        energy_dynamics,
        mfcc_stability,
        spectral_centroid,
        silence_fraction,
        spectral_flatness,
        speaking_rate,
    )
}
"""Name -> function, in the order of a feature vector."""


def measure(clip: Clip) -> dict[str, float]:
    analysis = Analysis(clip)
    return {name: function(analysis) for name, function in FEATURES.items()}


def mel_levels(analysis: Analysis) -> Floats:
    """40 mel bands in dB, ``[T, 40]``, none further than 80 dB below the highest."""
    mel_db: Any = 10 * np.log10(np.maximum(analysis.power @ _mel_filters(), 1e-10))
    return np.maximum(mel_db, mel_db.max() - 80)


def _analysis(source: Source) -> Analysis:
    return source if isinstance(source, Analysis) else Analysis(source)


def _smoothed(level_T: Floats, width: int = 5) -> Floats:
    padded = np.pad(level_T, width // 2, mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid").astype(np.float32)


@lru_cache(1)
def _window() -> Floats:
    return np.hanning(N_FFT + 1)[:-1].astype(np.float32)


@lru_cache(1)
def _bins() -> Floats:
    return np.linspace(0, RATE / 2, N_FFT // 2 + 1).astype(np.float32)


@lru_cache(1)
def _mel_filters() -> Floats:
    import librosa

    return np.ascontiguousarray(librosa.filters.mel(sr=RATE, n_fft=N_FFT, n_mels=N_MELS).T, np.float32)

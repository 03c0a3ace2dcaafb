"""Pitch and harmonicity by autocorrelation (Boersma 1993), on whole clips at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import fft

Floats = npt.NDArray[np.float32]

FLOOR_HZ, CEILING_HZ = 75.0, 600.0
"""Lowest and highest pitch that is looked for; Praat's defaults."""
HOP_SECONDS = 0.01
SILENCE, VOICING = 0.03, 0.45
OCTAVE_COST, JUMP_COST, VOICING_COST = 0.01, 0.35, 0.14
"""Praat's defaults of "To Pitch (ac)"."""
CANDIDATES = 4
"""Pitch candidates of a frame; Praat takes up to 15, and the first few decide."""


@dataclass(frozen=True, slots=True, eq=False)
class PitchTrack:
    hz_T: Floats
    """Fundamental frequency, 0 where unvoiced."""
    strength_T: Floats
    """Normalised autocorrelation at the pitch period, in (0, 1); 0 where unvoiced."""

    @property
    def voiced(self) -> npt.NDArray[np.bool_]:
        """Which frames are voiced, shape ``[T]``."""
        return self.hz_T > 0


def track_pitch(samples: Floats, rate: int) -> PitchTrack:
    """Pitch and its strength (Boersma 1993), with Praat's costs and the cheapest path through the candidates."""
    width, hop = round(3 / FLOOR_HZ * rate), round(HOP_SECONDS * rate)
    if len(samples) < width:
        return PitchTrack(np.zeros(0, np.float32), np.zeros(0, np.float32))
    centred = samples - samples.mean()
    frames_TW = np.lib.stride_tricks.sliding_window_view(centred, width)[::hop]
    loudest = float(np.abs(centred).max())
    if loudest == 0:
        zeros = np.zeros(len(frames_TW), np.float32)
        return PitchTrack(zeros, zeros)
    lags_TL, first = _autocorrelation(frames_TW, rate)
    hz_TK, strength_TK = _candidates(lags_TL, first, rate)
    third = width // 3  # as Praat: the loudest sample within the longest period around the frame's middle
    peak_T = np.abs(frames_TW[:, third : 2 * third]).max(axis=1) / loudest
    unvoiced_T = VOICING + np.maximum(0, 2 - peak_T * (1 + VOICING) / SILENCE)
    path_T = _cheapest_path(hz_TK, strength_TK, unvoiced_T)
    rows = np.arange(len(path_T))
    hz_T, strength_T = hz_TK[rows, path_T], strength_TK[rows, path_T]
    return PitchTrack(hz_T, np.where(hz_T > 0, strength_T, 0).astype(np.float32))


def _autocorrelation(frames_TW: Floats, rate: int) -> tuple[Floats, int]:
    """Normalised autocorrelation ``[T, L]`` divided by the window's own, and the lag of its first column."""
    width = frames_TW.shape[1]
    shortest, longest = int(rate / CEILING_HZ) - 1, int(np.ceil(rate / FLOOR_HZ)) + 1
    window_W = np.hanning(width + 2)[1:-1].astype(np.float32)
    size = fft.next_fast_len(width + longest + 1, real=True)
    weighted_TW = (frames_TW - frames_TW.mean(axis=1, keepdims=True)) * window_W

    def correlate(rows: Floats) -> Floats:
        spectrum: Any = fft.rfft(rows, size, axis=-1)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        lags: Any = fft.irfft(power, size, axis=-1)
        return lags[..., : longest + 1]

    window_L = correlate(window_W)
    frames_TL = correlate(weighted_TW)
    normal_TL = frames_TL / np.maximum(frames_TL[:, :1], 1e-20) * (window_L[0] / window_L)
    return normal_TL[:, shortest:].astype(np.float32), shortest


def _candidates(lags_TL: Floats, first: int, rate: int) -> tuple[Floats, Floats]:
    """Frequencies and strengths ``[T, 1 + K]`` of the highest peaks, refined by a parabola; column 0 is unvoiced."""
    left, middle, right = lags_TL[:, :-2], lags_TL[:, 1:-1], lags_TL[:, 2:]
    peaks_TL = (middle > left) & (middle >= right) & (middle > 0.5 * VOICING)
    lag_L = first + 1 + np.arange(middle.shape[1])
    cost_L = OCTAVE_COST * np.log2(CEILING_HZ * lag_L / rate).astype(np.float32)
    ranked_TL = np.where(peaks_TL, middle - cost_L, -np.inf).astype(np.float32)
    best_TK = np.argpartition(-ranked_TL, CANDIDATES - 1, axis=1)[:, :CANDIDATES]
    rows = np.arange(len(lags_TL))[:, None]
    a, b, c = left[rows, best_TK], middle[rows, best_TK], right[rows, best_TK]
    bend = np.minimum(a - 2 * b + c, -1e-9)
    shift = 0.5 * (a - c) / bend
    height = np.minimum(b - 0.25 * (a - c) * shift, 1 - 1e-6)
    with np.errstate(divide="ignore"):
        hz = rate / (best_TK + first + 1 + shift)
    usable = (ranked_TL[rows, best_TK] > -np.inf) & (hz <= CEILING_HZ) & (hz >= FLOOR_HZ)
    zeros = np.zeros((len(lags_TL), 1), np.float32)
    hz_TK = np.concatenate([zeros, np.where(usable, hz, -1)], axis=1).astype(np.float32)
    return hz_TK, np.concatenate([zeros, np.where(usable, height, 0)], axis=1).astype(np.float32)


def _cheapest_path(hz_TK: Floats, strength_TK: Floats, unvoiced_T: Floats) -> npt.NDArray[np.int64]:
    """Index of the candidate of each frame on the path with the highest sum of strengths less jump costs."""
    voiced_TK = hz_TK > 0
    octaves_TK = np.log2(np.where(voiced_TK, hz_TK, 1)).astype(np.float32)
    value_TK = strength_TK - OCTAVE_COST * (np.log2(CEILING_HZ).astype(np.float32) - octaves_TK)
    value_TK = np.where(voiced_TK, value_TK, -1e9)
    value_TK[:, 0] = unvoiced_T
    both = voiced_TK[:-1, :, None] & voiced_TK[1:, None, :]
    one = voiced_TK[:-1, :, None] ^ voiced_TK[1:, None, :]
    jump_TKK = np.abs(octaves_TK[:-1, :, None] - octaves_TK[1:, None, :])
    scale = 0.01 / HOP_SECONDS
    cost_TKK = (np.where(both, JUMP_COST * jump_TKK, 0) + np.where(one, VOICING_COST, 0)) * scale
    return best_path(value_TK, cost_TKK)


def best_path(value_TK: npt.NDArray[Any], cost_TKK: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Index of each frame's candidate on the path with the highest sum of values less the costs of its steps."""
    back_TK = np.zeros(value_TK.shape, np.int64)
    total_K = value_TK[0]
    for t in range(1, len(value_TK)):
        reached = total_K[:, None] - cost_TKK[t - 1]
        back_TK[t] = reached.argmax(axis=0)
        total_K = reached.max(axis=0) + value_TK[t]
    path = np.zeros(len(value_TK), np.int64)
    path[-1] = int(total_K.argmax())
    for t in range(len(path) - 1, 0, -1):
        path[t - 1] = back_TK[t, path[t]]
    return path

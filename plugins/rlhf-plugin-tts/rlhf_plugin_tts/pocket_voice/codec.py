"""The codec of pocket-voice, 75 codes a second of 16 kHz speech: every 40 ms one code of the excitation, two of the
spectrum."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlhf_core.models import ModelError
from rlhf_plugin_tts.pocket_voice.analysis import CEPSTRA, RATE, Floats, analyse
from rlhf_plugin_tts.pocket_voice.vocoder import synthesise

PITCHES = 32
LOWEST_HZ, HIGHEST_HZ = 60.0, 260.0
EXCITATIONS = 3 * PITCHES + 1
"""Voiced throughout, only its first half, only its second, each with a pitch; and unvoiced (the last code)."""
CODEC_FILE, CONFIG_FILE = "codec.safetensors", "codec.json"


@dataclass(frozen=True)
class Frames:
    """Codes of a clip: ``excitation_T`` per 40 ms, ``spectrum_T2`` per 20 ms, twice as many."""

    excitation_T: npt.NDArray[np.int64]
    spectrum_T2: npt.NDArray[np.int64]


class PocketCodec:
    def __init__(self, codebook: Floats) -> None:
        self.codebook = np.asarray(codebook, np.float64)

    @classmethod
    def load(cls, folder: Path) -> PocketCodec:
        from safetensors.numpy import load_file

        for name in (CONFIG_FILE, CODEC_FILE):
            if not (folder / name).is_file():
                raise ModelError(
                    f"voice folder '{folder}' has no {name}",
                    why="a speech policy's tokens mean nothing without the codec that they were made with",
                    fix=f"copy {CONFIG_FILE} and {CODEC_FILE} of the model that it was trained from into it",
                )
        settings = json.loads((folder / CONFIG_FILE).read_text())
        book = load_file(folder / CODEC_FILE)["codebook"]
        want = (settings.get("spectrum_codes"), CEPSTRA)
        if settings.get("sample_rate") != RATE or book.shape != want:
            raise ModelError(
                f"'{folder / CONFIG_FILE}' does not describe its codebook",
                why=f"it says {settings.get('sample_rate')} Hz and shape {want}; the file has {book.shape}, "
                f"and this codec works at {RATE} Hz",
                fix="copy both files from the same model",
            )
        if not np.isfinite(book).all():
            raise ModelError(f"the codebook of '{folder / CODEC_FILE}' holds NaN or infinity", fix="copy it again")
        return cls(book)

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        settings = {"codec": "pocket-voice", "sample_rate": RATE, "spectrum_codes": len(self.codebook)}
        (folder / CONFIG_FILE).write_text(json.dumps({**settings, "excitation_codes": EXCITATIONS}, indent=1) + "\n")
        save_file({"codebook": self.codebook.astype(np.float32)}, folder / CODEC_FILE)

    def encode(self, wave: Floats) -> Frames:
        """Codes of 16 kHz mono audio in [-1, 1]."""
        return self.quantise(*analyse(wave))

    def quantise(self, f0: Floats, voiced: npt.NDArray[np.bool_], cepstra: Floats) -> Frames:
        """Codes of parameters per 10 ms; what does not fill 40 ms is padded with its last frame."""
        count = -(-len(f0) // 4)
        padded = np.minimum(np.arange(4 * count), len(f0) - 1)
        f0, voiced, cepstra = f0[padded], voiced[padded], cepstra[padded]
        return Frames(excitation_codes(f0, voiced), self.nearest(cepstra.reshape(-1, 2, CEPSTRA).mean(1)))

    def nearest(self, cepstra: Floats) -> npt.NDArray[np.int64]:
        distance = (self.codebook**2).sum(1) - 2 * cepstra @ self.codebook.T
        return distance.argmin(1)

    def decode(self, frames: Frames) -> npt.NDArray[np.float32]:
        """Audio at 16 kHz; a code that is out of range raises IndexError."""
        if not len(frames.spectrum_T2):
            return np.zeros(0, np.float32)
        f0, voiced = excitation_of(frames.excitation_T)
        centres = np.arange(len(frames.spectrum_T2)) * 2 + 0.5
        at = np.arange(2 * len(frames.spectrum_T2))
        book = self.codebook[frames.spectrum_T2]
        cepstra = np.stack([np.interp(at, centres, column) for column in book.T], 1)
        return synthesise(f0, voiced, cepstra)


def excitation_codes(f0: Floats, voiced: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Per 40 ms, from values per 10 ms (a multiple of four)."""
    halves = np.any(voiced.reshape(-1, 2, 2), axis=2)
    weight = voiced.reshape(-1, 4) + 1e-6
    mean = (np.log(np.maximum(f0, 1.0)).reshape(-1, 4) * weight).sum(1) / weight.sum(1)
    span = np.log(HIGHEST_HZ / LOWEST_HZ)
    pitch = np.clip(np.rint((mean - np.log(LOWEST_HZ)) / span * (PITCHES - 1)), 0, PITCHES - 1).astype(int)
    kind = np.where(np.all(halves, axis=1), 0, np.where(halves[:, 0], 1, 2))
    return np.where(np.any(halves, axis=1), kind * PITCHES + pitch, EXCITATIONS - 1)


def pitch_of(codes: npt.NDArray[np.int64]) -> Floats:
    """Hz of excitation codes; NaN where unvoiced."""
    steps = (codes % PITCHES) / (PITCHES - 1)
    hz = LOWEST_HZ * np.exp(np.log(HIGHEST_HZ / LOWEST_HZ) * steps)
    return np.where(codes == EXCITATIONS - 1, np.nan, hz)


def excitation_of(codes: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """F0 and voicing per 10 ms; the pitch runs smoothly from code to code."""
    hz = pitch_of(codes)
    kind = codes // PITCHES
    first, second = (kind == 0) | (kind == 1), (kind == 0) | (kind == 2)
    voiced = np.repeat(np.stack([first & ~np.isnan(hz), second & ~np.isnan(hz)], 1).reshape(-1), 2)
    frames = np.flatnonzero(~np.isnan(hz))
    if not len(frames):
        return np.full(4 * len(codes), 100.0), voiced
    log_f0 = np.interp((np.arange(4 * len(codes)) - 1.5) / 4, frames, np.log(hz[frames]))
    kernel = np.hanning(7)[1:-1] / np.hanning(7)[1:-1].sum()
    return np.exp(np.convolve(np.pad(log_f0, 2, mode="edge"), kernel, "valid")), voiced


def frames_of(tokens: Iterable[str]) -> Frames:
    """Codes from a completion's token strings, phones skipped; missing halves repeat the first, so that all is
    sound."""
    excitation: list[int] = []
    spectrum: list[int] = []
    current = EXCITATIONS - 1
    for token in tokens:
        kind, number = token[:1], token[1:]
        if not number.isdecimal():
            continue
        if kind == "e":
            current = int(number)
            if len(spectrum) % 2:
                spectrum.append(spectrum[-1])
        elif kind == "c":
            if len(spectrum) % 2 == 0:
                excitation.append(current)
            spectrum.append(int(number))
    if len(spectrum) % 2:
        spectrum.append(spectrum[-1])
    return Frames(np.array(excitation, np.int64), np.array(spectrum, np.int64))


def tokens_of(frames: Frames, phones: Sequence[tuple[str, int]] = ()) -> list[str]:
    """Token strings of a clip, each phone (name, 40 ms frame in which it begins) before its frame's codes."""
    starts: dict[int, list[str]] = {}
    for name, frame in phones:
        starts.setdefault(min(frame, len(frames.excitation_T) - 1), []).append(name)
    out: list[str] = []
    for t, code in enumerate(frames.excitation_T):
        out += [*starts.get(t, ()), f"e{code}", *(f"c{c}" for c in frames.spectrum_T2[2 * t : 2 * t + 2])]
    return out

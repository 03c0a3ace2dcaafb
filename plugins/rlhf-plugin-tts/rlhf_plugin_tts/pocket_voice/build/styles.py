"""Clips as examples: a style changes a clip's parameters, and half of the time its prompt says so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_plugin_tts.pocket_voice import frontend
from rlhf_plugin_tts.pocket_voice.codec import PocketCodec, tokens_of

HOP_S = 0.04


@dataclass(frozen=True)
class Clip:
    """One spoken sentence: values per 10 ms are F0, voicing and mel-cepstrum."""

    text: str
    speed: str
    phones: tuple[tuple[str, float], ...]
    values: np.ndarray
    spectrum: np.ndarray
    """Codes per 20 ms."""


def example(clip: Clip, codec: PocketCodec, neighbours: np.ndarray, draw: np.random.Generator) -> tuple[str, list[str]]:
    """A prompt as the policy reads it, and the tokens of its clip in a random style; a third of the clips are rough."""
    f0, voiced = clip.values[:, 0].astype(float), clip.values[:, 1] > 0.5
    height = draw.choice(["low", "", "high"], p=[0.2, 0.6, 0.2])
    span = draw.choice(["flat", "", "lively"], p=[0.25, 0.5, 0.25])
    quality = draw.choice(["clear", "rough"], p=[0.65, 0.35])
    log_f0 = np.log(f0)
    middle = log_f0[voiced].mean() if voiced.any() else np.log(100.0)
    scale = {"flat": draw.uniform(0.1, 0.3), "": 1.0, "lively": draw.uniform(1.7, 2.2)}[span]
    shift = {"low": draw.uniform(-0.25, -0.15), "": draw.uniform(-0.03, 0.03), "high": draw.uniform(0.2, 0.4)}[height]
    log_f0 = middle + shift + scale * (log_f0 - middle)
    spectrum = clip.spectrum
    if quality == "rough":
        blocks = -(-len(log_f0) // 4)
        log_f0 = log_f0 + np.repeat(draw.normal(0, 0.08, blocks), 4)[: len(log_f0)]
        voiced = voiced & ~np.repeat(draw.random(blocks) < 0.12, 4)[: len(voiced)]
        swap = draw.random(len(spectrum)) < 0.35
        spectrum = np.where(swap, neighbours[spectrum, draw.integers(0, neighbours.shape[1], len(spectrum))], spectrum)
    frames = codec.quantise(np.exp(log_f0), voiced, clip.values[:, 2:])
    frames = type(frames)(frames.excitation_T, spectrum)
    parts = [s for s in (clip.speed, height, span, quality) if s and draw.random() < 0.5]
    prompt = " ".join(
        [*(frontend.styles_of(" ".join(parts)) if parts else ["plain"]), "|", *frontend.phones_of(clip.text), ">"]
    )
    phones = [(name, round(at / HOP_S)) for name, at in clip.phones]
    return prompt, tokens_of(frames, phones)

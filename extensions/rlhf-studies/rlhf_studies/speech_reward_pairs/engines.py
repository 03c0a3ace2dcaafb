"""How clips are made, each drawn from its number; clips 2n and 2n + 1 say one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.speech_data.catalogue import DESCRIPTIONS, UNSEEN, VALIDATION, sentences
from rlhf_plugin_tts.speech_data.compare import speak
from rlhf_studies.common.speech import flite

PITCH = {"kal16": 95, "rms": 95, "slt": 165, "awb": 120}
"""Voice of flite -> mean pitch in Hz around which the speaker's is drawn."""


def flite_clips(start: int, count: int, folder: Path) -> list[Sample]:
    """Clips number ``start`` and following."""
    samples: list[Sample] = []
    for number in range(start, start + count):
        rng = np.random.default_rng(number)
        voice, (name, _, text) = list(PITCH)[int(rng.integers(len(PITCH)))], sentences()[number // 2 % 30]
        drawn = {
            "duration_stretch": rng.uniform(0.75, 1.4),
            "int_f0_target_mean": PITCH[voice] * rng.uniform(0.8, 1.25),
            "int_f0_target_stddev": rng.uniform(2, 30),
        }
        samples.append(flite(name, text, folder / f"{number}.wav", voice, drawn))
    return samples


def pocket_clips(start: int, count: int, folder: Path) -> list[Sample]:
    """As :func:`flite_clips`; the two clips of a pair have different descriptions."""
    voices, prompts = list(DESCRIPTIONS.values()), list[Prompt]()
    for number in range(start, start + count):
        pair, side = divmod(number, 2)
        name, _, text = sentences()[pair % 30]
        style = voices[int(np.random.default_rng(pair).permutation(len(voices))[side])]
        prompts.append(Prompt(name, ({"role": "system", "content": style}, {"role": "user", "content": text})))
    return speak("pocket-voice", prompts, 1, seed=start)


def plain_clips(start: int, count: int, folder: Path) -> list[Sample]:
    """Samples of one plain prompt each two, of sentences that are not in the catalogue."""
    texts = (*VALIDATION, *UNSEEN)
    chosen = [texts[n // 2 % 60] for n in range(start, start + count)]
    prompts = [Prompt(text, ({"role": "user", "content": text},)) for text in chosen]
    return speak("pocket-voice", prompts, 1, seed=1_000_000 + start)


ENGINES: Mapping[str, Callable[[int, int, Path], list[Sample]]] = {
    "same policy": plain_clips,
    "pocket-voice": pocket_clips,
    "flite": flite_clips,
}

"""Scores of each voice with their intervals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_plugin_tts.speech_data.catalogue import UNSEEN
from rlhf_plugin_tts.speech_data.compare import interval, measure, score_with
from rlhf_plugin_tts.speech_training.command import scorers
from rlhf_studies.common.speech import cell, flite
from rlhf_studies.pocket_voice.config import PocketVoiceConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

SHOWN = ("wer/wer", "wer/cer", "distillmos", "dnsmos/p808", "dnsmos/ovrl")


class PocketVoice(Study[PocketVoiceConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        os.environ.setdefault("RLHF_AUDIO", str(folder))
        count, names = self.config.sentences, scorers()
        options = {"names": names, "settings": (), "seed": seed, "before": None, "count": count, "n": 1}
        table = {"flite": self.of_flite(folder, names, seed)} if shutil.which("flite") else {}
        for temperature in self.config.temperatures:
            how = {"description": "", "max_tokens": 480, "temperature": temperature}
            figures = measure(self.config.voice, {**options, **how})["table"]
            table[f"temperature {temperature:g}"] = {name: row["voice"] for name, row in figures.items()}
        return table

    def of_flite(self, folder: Path, names: tuple[str, ...], seed: int) -> dict[str, Any]:
        samples = [
            flite(f"unseen/{n}", text, folder / f"{n}.wav", "rms")
            for n, text in enumerate(UNSEEN[: self.config.sentences], 1)
        ]
        table: dict[str, Any] = {}
        for name, rows in score_with(names, (), seed, samples, 1).items():
            table[name] = interval(np.array([r.value for r in rows], float), seed)
            for part in rows[0].parts:
                table[f"{name}/{part}"] = interval(np.array([r.parts.get(part) for r in rows], float), seed)
        return table

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        voices = next(iter(results.values()))
        names = [name for name in SHOWN if all(name in row for row in voices.values())]
        return markdown(("voice", *names), [(voice, *(cell(row[n]) for n in names)) for voice, row in voices.items()])

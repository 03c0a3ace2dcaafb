"""Damages recordings, scores them, and says what each reward heard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.config import NATURAL, WerConfig
from rlhf_plugin_tts.faults import MEASURES
from rlhf_plugin_tts.features import Analysis
from rlhf_plugin_tts.rows import read_rated
from rlhf_plugin_tts.validate_cli import measure_columns, select
from rlhf_plugin_tts.wer import Wer
from rlhf_studies.common.outside import data_file
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.common.speech import PARTS
from rlhf_studies.common.study import Study
from rlhf_studies.common.tables import markdown
from rlhf_studies.speech_ladder.config import SpeechLadderConfig
from rlhf_studies.speech_ladder.damage import RATE, RUNGS, Samples, not_speech

SHARE = 0.75
"""Of the sentences that must score lower."""
Row = dict[str, Any]


class SpeechLadder(Study[SpeechLadderConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        recordings = sorted(data_file(self.config.data, "speech_mushra").glob("stim_*/ref.flac"))
        analyses, files = [Analysis(read_clip(file)) for file in recordings], recordings[: self.config.sentences]
        rows = [row for file in files for row in written(file, folder / "sounds")]
        write_jsonl(folder / "rows.jsonl", rows)
        clips = read_rated(str(folder / "rows.jsonl"), "mos", "sentence")
        columns, seconds = dict[str, np.ndarray](), dict[str, float]()
        for name in (n for n in self.config.rewards if n != "distillmos" or find_spec("distillmos")):
            before = time.process_time()
            columns |= measure_columns(clips, select((name,), (), str(folder / "rows.jsonl"), seed), features=False)
            seconds[name] = (time.process_time() - before) / len(rows)
        kept = {PARTS.get(name, name): values for name, values in columns.items() if name in (*seconds, *PARTS)}
        return {
            "sentences": len(files),
            "natural": {name: spread([MEASURES[name](analysis) for analysis in analyses]) for name in NATURAL},
            "seconds": seconds,
            "ladders": {
                name: {ladder: rungs(values, rows, ladder) for ladder in RUNGS} for name, values in kept.items()
            },
            "other": {name: others(values, rows) for name, values in kept.items()},
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        rows = [
            (name, *(said(ladder) for ladder in ladders.values()), louder(figures["other"][name]))
            for name, ladders in figures["ladders"].items()
        ]
        ladders = [f"{name}: {', '.join(f'{v:g}' for v in values)}" for name, (_, values) in RUNGS.items()]
        spent = ", ".join(f"`{name}` {s:.4f}" for name, s in figures["seconds"].items())
        return f"{markdown(('', *ladders, 'not speech'), rows)}\n\nProcessor seconds per clip: {spent}."


def spread(values: list[float]) -> list[float]:
    """Lowest, median, highest."""
    return np.percentile(values, [0, 50, 100]).tolist()


def written(file: Path, folder: Path) -> Iterator[Row]:
    """Rows of a recording, of what each rung makes of it, and of the sounds that are no speech."""
    clip = read_clip(file).at(RATE)
    text, folder = Wer(WerConfig()).recogniser.transcribe(clip), folder / file.parent.name
    sounds: dict[tuple[str, float], Samples] = {("clean", 0.0): clip.samples}
    sounds |= {(name, v): damage(clip.samples, v) for name, (damage, rungs) in RUNGS.items() for v in rungs}
    sounds |= {(name, 0.0): sound for name, sound in not_speech(len(clip.samples)).items()}
    folder.mkdir(parents=True, exist_ok=True)
    for number, ((name, value), sound) in enumerate(sounds.items()):
        path = folder / f"{number}.wav"
        soundfile.write(path, sound, RATE, subtype="FLOAT")
        row = {"audio": str(path.absolute()), "text": text, "mos": -number, "sentence": file.parent.name}
        yield {**row, "ladder": name, "rung": value}


def values_of(values: np.ndarray, rows: list[Row], ladder: str, rung: float = 0.0) -> np.ndarray:
    """Scores of one rung, by sentence; what has no score is below all."""
    chosen = [v for v, row in zip(values, rows) if row["ladder"] == ladder and row["rung"] == rung]
    return np.nan_to_num(chosen, nan=-1e9)


def rungs(values: np.ndarray, rows: list[Row], ladder: str) -> list[Row]:
    clean = before = values_of(values, rows, "clean")
    found = list[Row]()
    for rung in RUNGS[ladder][1]:
        now = values_of(values, rows, ladder, rung)
        heard = bool(now.mean() < before.mean() and (now < before).mean() >= SHARE)
        paid = bool(now.mean() > clean.mean() and (now > clean).mean() >= SHARE)
        found.append({"rung": rung, "change": float((now - clean).mean()), "heard": heard, "paid": paid})
        before = now
    return found


def others(values: np.ndarray, rows: list[Row]) -> Row:
    """Sound that is no speech -> share of the damaged clips of the same sentence that it scores above."""
    damaged = np.array([values_of(values, rows, name, v) for name, (_, vs) in RUNGS.items() for v in vs])
    names = list(not_speech(1))
    return {name: float((values_of(values, rows, name) > damaged).mean()) for name in names}


def said(ladder: list[Row]) -> str:
    """What of a ladder is not heard, and what is paid for."""
    deaf = ", ".join(f"{row['rung']:g}" for row in ladder if not row["heard"])
    paid = ", ".join(f"{row['rung']:g}" for row in ladder if row["paid"])
    deaf = "all" if not any(row["heard"] for row in ladder) else deaf
    return "; ".join([*([f"blind to {deaf}"] if deaf else ["heard"]), *([f"pays for {paid}"] if paid else [])])


def louder(other: Row) -> str:
    """Which sounds score above damaged speech, with the share of it."""
    above = ", ".join(f"{name} ({share:.0%})" for name, share in other.items() if share > 0)
    return f"above damaged speech: {above}" if above else "below all speech"

"""Which damage does each speech reward detect? Recorded sentences are damaged in eleven ways, from little to much.

    RLHF_TEST_DATA=FOLDER python plugins/rlhf-plugin-tts/tests/ladder.py

measures every reward that needs no weights of its own, writes docs/bench/speech_ladder.json, and the table in the
plugin's README. Words and durations are compared with the recogniser's transcript of the undamaged recording.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from damage import RATE, RUNGS, Samples, not_speech

from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.config import NATURAL, WerConfig
from rlhf_plugin_tts.faults import MEASURES
from rlhf_plugin_tts.features import Analysis
from rlhf_plugin_tts.rows import read_rated
from rlhf_plugin_tts.validate_cli import measure_columns, select
from rlhf_plugin_tts.validation import SPEECH_PARTS
from rlhf_plugin_tts.wer import Wer

README = Path(__file__).parents[1] / "README.md"
RECORD = Path(__file__).parents[3] / "docs" / "bench" / "speech_ladder.json"
REWARDS = ("acoustic_proxy", "duration", "distillmos", "speech")
"""``speech`` has DNSMOS and the word errors among its parts."""
NOT_MEASURED = {
    "audio_encoder_model": "depends on its pairs",
    "audio_feature_model": "depends on its pairs",
    "guarded": "depends on the reward inside",
    "phones": "reads tokens only",
    "speaker_similarity": "needs weights from the hub",
    "utmos22": "needs weights from the hub",
}
NOT_SHOWN = ("dnsmos, background", "dnsmos, speech")
SENTENCES = 3
SHARE = 0.75
"""Of the sentences that must score lower than on the rung before."""
MARK = "<!-- Written by tests/ladder.py. -->"
Row = dict[str, Any]
Values = Any


def measured(recordings: Sequence[Path], rewards: Sequence[str], folder: Path, jobs: int = 1) -> Row:
    """Verdicts of each reward on every rung, and its processor seconds per clip."""
    work = partial(scored, rewards=rewards, folder=folder)
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            parts = list(pool.map(work, recordings))
    else:
        parts = list(map(work, recordings))
    rows = [row for of_one, _, _ in parts for row in of_one]
    columns = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
    kept = {
        SPEECH_PARTS.get(name, name): values for name, values in columns.items() if name in (*rewards, *SPEECH_PARTS)
    }
    return {
        "sentences": len(recordings),
        "seconds": {name: sum(part[2][name] for part in parts) / len(rows) for name in parts[0][2]},
        "ladders": {name: {ladder: rungs(values, rows, ladder) for ladder in RUNGS} for name, values in kept.items()},
        "other": {name: others(values, rows) for name, values in kept.items()},
    }


def scored(recording: Path, rewards: Sequence[str], folder: Path) -> tuple[list[Row], dict[str, Values], Row]:
    """Rows of one recording and its damaged copies, their scores, which the composite takes for one group, and the
    processor seconds of each reward.
    """
    rows, seconds = list(written(recording, folder)), dict[str, float]()
    file = folder / f"{rows[0]['sentence']}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    clips = read_rated(str(file), "mos", "sentence")
    columns: dict[str, Values] = {}
    for name in rewards:
        before = time.process_time()
        columns |= measure_columns(clips, select((name,), (), str(file), 0), features=False)
        seconds[name] = time.process_time() - before
    return rows, columns, seconds


def written(file: Path, folder: Path) -> Iterator[Row]:
    """Rows of a recording, of what each rung makes of it, and of the sounds that are no speech."""
    clip = read_clip(file).at(RATE)
    text, folder = Wer(WerConfig()).recogniser.transcribe(clip) or "nothing", folder / f"{file.parent.name}-{file.stem}"
    sounds: dict[tuple[str, float], Samples] = {("clean", 0.0): clip.samples}
    sounds |= {(name, v): damage(clip.samples, v) for name, (damage, values) in RUNGS.items() for v in values}
    sounds |= {(name, 0.0): sound for name, sound in not_speech(len(clip.samples)).items()}
    folder.mkdir(parents=True, exist_ok=True)
    for number, ((name, value), sound) in enumerate(sounds.items()):
        path = folder / f"{number}.wav"
        soundfile.write(path, sound, RATE, subtype="FLOAT")
        row = {"audio": str(path.absolute()), "text": text, "mos": -number, "sentence": folder.name}
        yield {**row, "ladder": name, "rung": value}


def values_of(values: Values, rows: Sequence[Row], ladder: str, rung: float = 0.0) -> Values:
    """Scores of one rung, by sentence; what has no score is below all."""
    chosen = [v for v, row in zip(values, rows) if row["ladder"] == ladder and row["rung"] == rung]
    return np.nan_to_num(chosen, nan=-1e9)


def rungs(values: Values, rows: Sequence[Row], ladder: str) -> list[Row]:
    clean = before = values_of(values, rows, "clean")
    verdicts = list[Row]()
    for rung in RUNGS[ladder][1]:
        now = values_of(values, rows, ladder, rung)
        lower = bool(now.mean() < before.mean() and (now < before).mean() >= SHARE)
        higher = bool(now.mean() > clean.mean() and (now > clean).mean() >= SHARE)
        verdicts.append({"rung": rung, "change": float((now - clean).mean()), "lower": lower, "higher": higher})
        before = now
    return verdicts


def others(values: Values, rows: Sequence[Row]) -> Row:
    """Sound that is no speech -> share of the damaged clips of the same sentence that it scores above."""
    damaged = np.array([values_of(values, rows, name, v) for name, (_, vs) in RUNGS.items() for v in vs])
    return {name: float((values_of(values, rows, name) > damaged).mean()) for name in not_speech(1)}


def natural(recordings: Sequence[Path]) -> dict[str, list[float]]:
    """Measure of the acoustic proxy -> lowest, median and highest value of recordings."""
    analyses = [Analysis(read_clip(file)) for file in recordings]
    return {n: np.percentile([MEASURES[n](a) for a in analyses], [0, 50, 100]).tolist() for n in NATURAL}


def table(record: Mapping[str, Any]) -> str:
    """Ladders as rows, rewards as columns; a cell counts the rungs at which scores fall."""
    names = [name for name in record["ladders"] if name not in NOT_SHOWN]
    lines = [("", *names), ("---",) * (len(names) + 1)]
    for ladder, (_, values) in RUNGS.items():
        label = f"{ladder}: {values[0]:g} to {values[-1]:g}"
        lines.append((label, *(counted(record["ladders"][name][ladder]) for name in names)))
    lines.append(("no speech, at most", *(f"{max(record['other'][name].values()):.0%}" for name in names)))
    rows = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines]
    left = [f"`{name}` {why}" for name, why in NOT_MEASURED.items()]
    return "\n".join([*rows, "", f"Not measured: {'; '.join(left)}."])


def counted(ladder: Sequence[Row]) -> str:
    paid = sum(row["higher"] for row in ladder)
    return f"{sum(row['lower'] for row in ladder)}/{len(ladder)}" + f", **pays {paid}**" * bool(paid)


def recorded_sentences() -> list[Path]:
    return sorted(Path(os.environ["RLHF_TEST_DATA"]).glob("speech_mushra/stim_*/ref.flac"))


def write_table(record: Mapping[str, Any]) -> None:
    before, _, after = README.read_text().split(MARK)
    README.write_text(f"{before}{MARK}\n\n{table(record)}\n\n{MARK}{after}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        record = measured(recorded_sentences()[:SENTENCES], REWARDS, Path(folder), SENTENCES)
    record["natural"] = natural(recorded_sentences())
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    write_table(record)


if __name__ == "__main__":
    main()

"""Every column against the ratings, with the recordings and without them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data import json_values
from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.config import WerConfig
from rlhf_plugin_tts.rows import RatedClip, read_rated
from rlhf_plugin_tts.validate_cli import measure_columns, select
from rlhf_plugin_tts.validation import SPEECH_PARTS, correlations
from rlhf_plugin_tts.wer import Wer
from rlhf_studies.common.outside import data_file
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.speech_ratings.config import SpeechRatingsConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

COMPARES_WORDS = {"wer", "speech"}
"""Rewards that have no value for the recordings, since their transcript is the text."""
Row = dict[str, Any]


class SpeechRatings(Study[SpeechRatingsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        source, file = data_file(self.config.data, "speech_mushra"), folder / "rated.jsonl"
        ratings = self.ratings(source)
        write_jsonl(file, rated(source, ratings))
        clips = read_rated(str(file), "mos", "stimulus")
        names = [name for name in self.config.rewards if name != "distillmos" or find_spec("distillmos")]
        columns = measure_columns(clips, select(names, (), str(file), seed), features=True)
        coded = np.array([clip.row["condition"] != "Reference" for clip in clips])
        columns = {SPEECH_PARTS.get(n, n): v for n, v in columns.items() if n in SPEECH_PARTS or "/" not in n}
        for name in COMPARES_WORDS & set(columns):
            columns[name] = np.where(coded, columns[name], np.nan)
        return {
            "clips": len(clips),
            "all": of_rows(columns, clips, np.ones(len(clips), bool), seed),
            "without_reference": of_rows(columns, clips, coded, seed),
            "listeners_split_half_within": agreement(ratings, seed),
        }

    def ratings(self, folder: Path) -> list[Row]:
        rows = json.loads((folder / "ratings.json").read_text())
        chosen = sorted({stimulus(row) for row in rows})[: self.config.stimuli]
        return [row for row in rows if stimulus(row) in chosen]

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        of_codecs = {name: row for name, row in figures["without_reference"].items() if row["within"] is not None}
        coded = sorted(of_codecs.items(), key=lambda item: -item[1]["within"])
        rows = [(name, shown(row), shown(figures["all"][name]), f"{row['pooled'] or 0:+.2f}") for name, row in coded]
        table = markdown(("", "codecs only", "with the recording", "codecs only, pooled"), rows)
        widths = [row["within_interval"] for _, row in coded if None not in row["within_interval"]]
        half = np.median([(high - low) / 2 for low, high in widths])
        agree = f"Two halves of the listeners agree with {figures['listeners_split_half_within']:.2f}."
        return f"{table}\n\n{agree} Half of the intervals (codecs only) are wider than ±{half:.2f}."


def stimulus(row: Row) -> str:
    return Path(row["file"]).parent.name


def rated(folder: Path, ratings: Sequence[Row]) -> list[Row]:
    recogniser = Wer(WerConfig()).recogniser
    recordings = {stimulus(row): folder / row["file"] for row in ratings if row["condition"] == "Reference"}
    transcripts = {name: recogniser.transcribe(read_clip(file)) for name, file in recordings.items()}
    return [
        {
            "audio": str((folder / row["file"]).absolute()),
            "text": transcripts[stimulus(row)],
            "mos": row["mushra_mean"],
            "stimulus": stimulus(row),
            "condition": row["condition"],
        }
        for row in ratings
    ]


def agreement(ratings: Sequence[Row], seed: int) -> float:
    """Spearman of the means of two halves of the listeners, within stimuli: what a scorer can hope for."""
    halves = [np.array([np.mean(r["ratings"][start::2]) for r in ratings]) for start in (0, 1)]
    return float(
        correlations({"half": halves[0]}, halves[1], list(map(stimulus, ratings)), 0.1, seed)["half"]["within"]
    )


def of_rows(columns: Mapping[str, Any], clips: Sequence[RatedClip], rows: Any, seed: int) -> dict[str, Any]:
    """Correlations of some rows, within stimuli and pooled."""
    chosen = [clip for clip, keep in zip(clips, rows) if keep]
    reference, groups = np.array([clip.reference for clip in chosen]), [clip.group for clip in chosen]
    return json_values(correlations({n: v[rows] for n, v in columns.items()}, reference, groups, 0.10, seed))


def shown(row: Mapping[str, Any]) -> str:
    if row["within"] is None or None in row["within_interval"]:
        return "not defined"
    low, high = row["within_interval"]
    return f"{row['within']:+.2f} ({low:+.2f} to {high:+.2f})"

"""Every local speech reward against listeners' MUSHRA scores: rank correlation per stimulus and pooled.

    python -m scripts.real.speech_ratings --data FOLDER --record docs/bench/speech_ratings.json

FOLDER holds ``speech_mushra``: 8 sentences, each as recorded and through 7 codecs, rated by 10 or 11 listeners. The
hidden reference is found by nearly every listener, so the figures are given with and without it. Nothing is fitted to
the ratings but the weights in ``weighting``, which are tested on stimuli that they were not fitted to (by the same
codecs). Texts of the sentences are not published with the clips: ``wer`` compares with what the recogniser hears in the
recording, which therefore has no value of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data import json_values
from rlhf_core.data.atomic import write_json
from rlhf_plugin_tts.audio import read_clip
from rlhf_plugin_tts.config import WerConfig
from rlhf_plugin_tts.rows import RatedClip, read_rated
from rlhf_plugin_tts.validate_cli import measure_columns, select, validated
from rlhf_plugin_tts.validation import correlations
from rlhf_plugin_tts.wer import Wer
from scripts.bench.__main__ import commit, machine

REWARDS = (
    "acoustic_proxy",
    "duration",
    "dnsmos",
    *(("distillmos",) if find_spec("distillmos") else ()),
    "wer",
    "speech",
)
COMPARES_WORDS = ("wer", "speech")
"""Rewards that have no value for the recordings, since what is heard in them is the text."""
SEED_CLAIMS = {
    "pitch_variance": "highest single predictor (weight 0.30)",
    "hnr": "weight 0.25",
    "voiced_fraction": "weight 0.20",
    "energy_dynamics": "weight 0.15, flat energy is robotic",
    "mfcc_stability": "weight 0.10",
    "spectral_centroid": "excluded: rho 0.04",
    "silence_fraction": "excluded: depends on the prompt",
}
"""What the method that the proxy is from says of each feature, against UTMOS22 and not against listeners."""


def rated_rows(folder: Path, transcribe: Callable[[Path], str]) -> list[dict[str, Any]]:
    """Rows for ``read_rated``; the text is what is heard in the stimulus's recording."""
    ratings = json.loads((folder / "ratings.json").read_text())
    heard = {
        Path(r["file"]).parent.name: transcribe(folder / r["file"]) for r in ratings if r["condition"] == "Reference"
    }
    return [
        {
            "audio": str((folder / r["file"]).absolute()),
            "text": heard[Path(r["file"]).parent.name],
            "mos": r["mushra_mean"],
            "stimulus": Path(r["file"]).parent.name,
            "condition": r["condition"],
        }
        for r in ratings
    ]


def listeners_agreement(folder: Path) -> float:
    """Spearman of the means of two halves of the listeners, within stimuli: what a scorer can hope for."""
    ratings = json.loads((folder / "ratings.json").read_text())
    halves = [np.array([np.mean(r["ratings"][start::2]) for r in ratings]) for start in (0, 1)]
    groups = [Path(r["file"]).parent.name for r in ratings]
    row = correlations({"half": halves[0]}, halves[1], groups, 0.1, seed=0)["half"]
    return float(row["within"])


def measure(folder: Path) -> dict[str, Any]:
    """The record."""
    recogniser = Wer(WerConfig()).recogniser
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "rated.jsonl"
        rows = rated_rows(folder, lambda path: recogniser.transcribe(read_clip(path)))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        clips = read_rated(str(file), "mos", "stimulus")
        columns = {}
        for name in ("features", *REWARDS):
            rewards = select([name], (), str(file), 0) if name in REWARDS else {}
            new = measure_columns(clips, rewards, features=not rewards)
            columns |= {n: v for n, v in new.items() if not _known(n.partition("/")[2], v, columns)}
            print(f"measured: {name}", flush=True)
    coded = np.array([clip.row["condition"] != "Reference" for clip in clips])
    for name in [n for n in columns if n.split("/")[0] in COMPARES_WORDS]:
        columns[name] = np.where(coded, columns[name], np.nan)
    features = {n: v for n, v in columns.items() if "/" not in n and n not in REWARDS}
    return {
        "clips": len(clips),
        "all": report(columns, clips)["columns"],
        "without_reference": report(*subset(columns, clips, coded))["columns"],
        "features_weighting": report(features, clips)["weighting"],
        "features_weighting_without_reference": report(*subset(features, clips, coded))["weighting"],
        "listeners_split_half_within": listeners_agreement(folder),
        "claims": SEED_CLAIMS,
    }


def _known(part: str, values: Any, columns: Mapping[str, Any]) -> bool:
    """Whether a reward's part is a feature that was measured already."""
    return part in columns and np.array_equal(values, columns[part], equal_nan=True)


def report(columns: Mapping[str, Any], clips: list[RatedClip]) -> dict[str, Any]:
    """As `rlhf tts validate`."""
    return validated(columns, clips, 0.10, {}, 0)


def subset(columns: Mapping[str, Any], clips: list[RatedClip], rows: Any) -> tuple[dict[str, Any], list[RatedClip]]:
    """The columns and clips of some rows."""
    return {n: v[rows] for n, v in columns.items()}, [clip for clip, keep in zip(clips, rows) if keep]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    record = measure(options.data / "speech_mushra")
    record |= {"seconds": round(time.monotonic() - started), "load": os.getloadavg(), "commit": commit()}
    record["machine"] = machine()
    for name, row in sorted(record["without_reference"].items(), key=lambda item: -(item[1]["within"] or 0)):
        whole = record["all"][name]
        print(f"{name:24} within {show(row)}   with the reference {show(whole)}   pooled {row['pooled'] or 0:+.2f}")
    if options.record:
        write_json(options.record, json_values(record))


def show(row: Mapping[str, Any]) -> str:
    """A correlation with its interval."""
    if row["within"] is None or None in row["within_interval"]:
        return "not defined"
    low, high = row["within_interval"]
    return f"{row['within']:+.2f} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    main()

"""What scorers say of a voice on given sentences, measured once: for the studies of speech training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data.atomic import write_json
from rlhf_plugin_tts.speech_data.compare import interval, measure

Scores = dict[str, list[float | None]]
LOWER_IS_BETTER = ("wer/wer", "wer/cer")


def heard(
    file: Path, model: str, texts: Sequence[str], names: Sequence[str], jobs: int, n: int = 1, temperature: float = 1.0
) -> Scores:
    """Scorer -> scores of ``n`` clips of each sentence, sentence by sentence; read where the file has them.

    Raises:
        SystemExit: the file holds scores of something else.
    """
    asked = {"texts": list(texts), "names": list(names), "n": n, "temperature": temperature}
    if not file.is_file():
        options = {**asked, "settings": (), "seed": 0, "before": None, "jobs": jobs, "count": len(texts)}
        scores = measure(model, {**options, "description": "", "max_tokens": 480})["scores"]
        write_json(file, {"asked": asked, "scores": {name: by_voice["voice"] for name, by_voice in scores.items()}})
        print(f"measured: {file}", flush=True)
    kept = json.loads(file.read_text())
    if kept.get("asked") != asked:
        raise SystemExit(f"{file} was measured with other sentences or scorers: give another --folder, or remove it")
    return kept["scores"]


def by_sentence(values: Sequence[float | None], n: int = 1) -> Any:
    """Mean of each sentence's clips that have a score."""
    rows = np.array(values, float).reshape(-1, n)
    counts = (~np.isnan(rows)).sum(1)
    return np.where(counts > 0, np.nansum(rows, 1) / np.maximum(1, counts), np.nan)


def change(name: str, before: Scores, after: Scores, n: int = 1) -> dict[str, Any]:
    """After less before with its interval, and whether the whole interval is for the worse."""
    row: dict[str, Any] = interval(by_sentence(after[name], n) - by_sentence(before[name], n), 0)
    low, high = (float(row[end] or 0.0) for end in ("low", "high"))
    return {**row, "worse": low > 0 if name in LOWER_IS_BETTER else high < 0}

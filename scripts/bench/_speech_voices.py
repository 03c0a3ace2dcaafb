"""What scorers say of a voice on given sentences, measured once: for the studies of speech training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlhf_core.data.atomic import write_json
from rlhf_plugin_tts.speech_data.compare import measure
from rlhf_studies.common.speech import AS_PROPOSED

Scores = dict[str, list[float | None]]


def scores_of(
    file: Path, model: str, texts: Sequence[str], names: Sequence[str], jobs: int, n: int = 1, temperature: float = 1.0
) -> Scores:
    """Scorer -> scores of ``n`` clips of each sentence, sentence by sentence; read where the file has them."""
    request = {"texts": list(texts), "names": list(names), "n": n, "temperature": temperature}
    if not file.is_file():
        settings = AS_PROPOSED if "acoustic_proxy" in names else ()
        options = {**request, "settings": settings, "seed": 0, "before": None, "jobs": jobs, "count": len(texts)}
        scores = measure(model, {**options, "description": "", "max_tokens": 480})["scores"]
        write_json(file, {"asked": request, "scores": {name: by_voice["voice"] for name, by_voice in scores.items()}})
        print(f"measured: {file}", flush=True)
    stored = json.loads(file.read_text())
    if stored.get("asked") != request:
        raise SystemExit(f"{file} was measured with other sentences or scorers: give another --folder, or remove it")
    return stored["scores"]

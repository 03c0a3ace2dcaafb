"""One update of SFT, DPO and a reward model on 24 human pairs, ours against TRL's trainers on the same rows, in turns.

TRL's settings are tried first (micro-batch, packing, padding-free, rows of like length together, chunked loss), each
in the first update of a process; its fastest takes part. Ours has the same micro-batch, and the defaults of its
trainers; then it is measured alone with selective recomputation.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.bench._offline_work import TRIED
from scripts.bench._processor import peaks, processor
from scripts.bench._sides import Side, as_folder, in_turns, module_side, outcome, smollm2

ROUNDS = 3
SLACK = 2
"""Most tokens by which the two sides' sequences may differ: TRL learns the line break after the end of a turn, too."""


def side(name: str, case: str, model: Path, folder: Path, threads: int, options: str) -> Side:
    return module_side(name, "scripts.bench._offline_work", (name, case, str(model), options), folder, threads)


def tried(case: str, model: Path, scratch: Path, threads: int) -> dict[str, dict[str, float]]:
    """What an update takes TRL with each of its settings, in seconds and MB."""
    found: dict[str, dict[str, float]] = {}
    for name, options in TRIED[case].items():
        trl = side("trl", case, model, scratch / f"trl {len(found)}", threads, json.dumps(options))
        trl.close()
        found[name] = {key: round(trl.first[key], 2) for key in ("seconds", "cpu_seconds", "peak_rss_mb")}
        print(f"{case}, TRL with {name}: {found[name]}", flush=True)
    return found


def measure(case: str, model: Path | str, rounds: int, threads: int) -> dict[str, Any]:
    """Find TRL's best settings, and compare with them."""
    folder = as_folder(model)
    with tempfile.TemporaryDirectory() as scratch:
        found = tried(case, folder, Path(scratch), threads)
        best = min(found, key=lambda name: found[name]["cpu_seconds"])
        options = json.dumps(TRIED[case][best])
        ours = side("ours", case, folder, Path(scratch) / "ours", threads, options)
        trl = side("trl", case, folder, Path(scratch) / "trl", threads, options)
        in_turns(ours, trl, rounds)
        chosen = json.dumps({**TRIED[case][best], "gradient_checkpointing": "selective"})
        selective = side("ours", case, folder, Path(scratch) / "selective", threads, chosen)
        for _ in range(rounds):
            selective.step()
        selective.close()
    counted = [side.steps[0]["tokens_trained"] for side in (ours, trl)]
    if abs(counted[0] - counted[1]) > SLACK * ours.steps[0]["sequences"]:
        raise SystemExit(f"the two sides did not learn the same tokens: {counted}")
    return {
        "work": f"24 pairs of hh-rlhf, {case}",
        "trl_settings": best,
        "tried": found,
        **outcome(ours, trl, rounds, threads),
        "ours_selective": selective.figures(),
        "selective_peak_rss_of_trl": round(selective.figures()["peak_rss_mb"] / trl.figures()["peak_rss_mb"], 3),
        "processor": processor(),
        "product_gflops": peaks("float32", threads),
        "trl_version": metadata.version("trl"),
    }


def cases(rounds: int = ROUNDS, model: Path | None = None, threads: int = 2) -> dict[str, Callable[[], dict[str, Any]]]:
    """``rounds`` are counted updates of each side, ``model`` a .gguf file or folder."""
    return {case: partial(measure, case, model or smollm2(), rounds, threads) for case in TRIED}

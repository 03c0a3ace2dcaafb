"""Does a real model find the first wrong step? SmolLM2-135M on ProcessBench's GSM8K part, process against outcome.

Trains ``configs/smollm2_prm.yaml`` twice through the public command line, with a label per step and with the outcome
alone, on the same changed GSM8K solutions, and lets both look for the first error in solutions of other models. Prints
F1 as ProcessBench defines it, what scores that know nothing reach, and how well each tells right answers from wrong.

    python -m scripts.real.smollm2_prm --model SmolLM2-135M-Instruct.gguf --data FOLDER

``--model`` is a hub id, folder or .gguf file (default: $RLHF_SMOLLM2_GGUF, else the hub's). ``--data`` holds ``gsm8k/``
and ``processbench/`` (default: $RLHF_TEST_DATA). With ``--runs`` finished runs are kept, and used again
for the same options.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.__main__ import commit, machine
from scripts.real.smollm2_gsm8k import ROOT
from scripts.studies.prm_vs_orm import auc

CONFIG = ROOT / "configs" / "smollm2_prm.yaml"
ALGOS = ("prm", "orm")


def main() -> None:
    """Train both at once, one thread each; measure, print, record."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real.smollm2_prm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=os.environ.get("RLHF_SMOLLM2_GGUF"))
    parser.add_argument("--data", type=Path, default=os.environ.get("RLHF_TEST_DATA"))
    parser.add_argument("--set", action="append", default=[], help="one setting of both runs; repeatable")
    parser.add_argument("--runs", type=Path, help="folder for the runs; default a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "studies" / "smollm2_prm.json")
    parser.add_argument("--note", default="", help="what else the machine was doing, for the record")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data, or $RLHF_TEST_DATA, must name the folder with gsm8k/ and processbench/")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        root = args.runs or Path(folder)
        train(root, args.model, args.data, args.set)
        found = {algo: measured(root / algo, args.data) for algo in ALGOS}
    record = {
        "command": "python -m scripts.real.smollm2_prm",
        "config": "configs/smollm2_prm.yaml",
        "set": args.set,
        **found,
        "seconds_total": round(time.perf_counter() - began, 1),
        "commit": commit(),
        "machine": {**machine(), "load_average": os.getloadavg(), "note": args.note},
    }
    print(json.dumps(record, indent=1))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def train(root: Path, model: str | None, data: Path, settings: Sequence[str]) -> None:
    """Make the runs that are not there.

    Raises:
        SystemExit: ``rlhf train`` failed (its own message was shown), or the runs that are there had other options.
    """
    asked = {"model": model, "data": str(data), "set": list(settings), "config": CONFIG.read_text()}
    file = root / "asked.json"
    there = json.loads(file.read_text()) if file.is_file() else None
    if there != asked and any((root / a / "final").is_dir() for a in ALGOS):
        raise SystemExit(f"{root} holds runs with other options than these; name another folder with --runs")
    sets = [f"dataset.path={data / 'gsm8k' / 'train.jsonl.gz'}", "threads=1", *settings]
    shared = [*(["--model", model] if model else []), *(x for s in sets for x in ("--set", s))]
    root.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asked))
    running: list[subprocess.Popen[bytes]] = []
    for algo in (a for a in ALGOS if not (root / a / "final").is_dir()):
        own = root / f"{algo}.yaml"  # the same settings under the other name
        own.write_text(CONFIG.read_text().replace("name: prm", f"name: {algo}"))
        command = [
            sys.executable,
            "-m",
            "rlhf_core.cli.main",
            "train",
            "--config",
            str(own),
            *shared,
            "--run-dir",
            str(root / algo),
        ]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit("rlhf train failed")


def measured(run: Path, data: Path) -> dict[str, Any]:
    """What the run says of itself, and what its model does on ProcessBench."""
    from rlhf_plugin_prm.evaluate import judge
    from rlhf_plugin_prm.first_error import report

    summary = json.loads((run / "summary.json").read_text())
    began = time.perf_counter()
    found = judge(str(run / "final"), str(data / "processbench" / "gsm8k.json.gz"))
    seconds = time.perf_counter() - began
    right = np.array([s.outcome for s in found.solutions])
    scores = {
        "min": np.array([p.min() for p in found.right]),
        "mean": np.array([p.mean() for p in found.right]),
        "last": np.array([p[-1] for p in found.right]),
    }
    ends = {how: round(auc(of[right], of[~right]), 4) for how, of in scores.items()}
    heldout = {
        when: {k: round(v, 4) for k, v in (summary[f"evaluation_{when}"] or {}).items()} for when in ("before", "after")
    }
    return {
        "training": {
            "solutions": summary["train_examples"],
            "steps": summary["steps"],
            "seconds": summary["seconds"],
            "heldout": heldout,
        },
        "processbench": {
            **report(found.right, [s.first_error for s in found.solutions]),
            "unscored": len(found.unscored),
            "seconds": round(seconds, 1),
        },
        "answer_auc": ends,
    }


if __name__ == "__main__":
    main()

"""Reward models of SmolLM2-135M on human preference pairs (hh-rlhf): trained, then tested by ``rlhf reward evaluate``.

A Bradley-Terry model and an ensemble learn from the same training rows and are evaluated together on the rows that
training set aside: accuracy, calibration, biases, agreement. Everything goes through the public command line; figures
and times go to a JSON file.

    python -m scripts.real.hh_reward_models --model SmolLM2-135M-Instruct.gguf --data FOLDER

``--model`` is a hub id, folder or .gguf file (default: $RLHF_SMOLLM2_GGUF, else the hub's); ``--data`` holds
``hh_rlhf/`` (default: $RLHF_TEST_DATA).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.__main__ import commit, machine

ROOT = Path(__file__).parents[2]
RLHF = [sys.executable, "-m", "rlhf_core.cli.main"]
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
HELDOUT = 0.25
GOAL = 0.57
MODELS = {
    "bradley_terry": ROOT / "configs" / "smollm2_hh_bradley_terry.yaml",
    "ensemble": ROOT / "configs" / "smollm2_hh_ensemble.yaml",
}


def main() -> None:
    """Train both, evaluate both, print and record."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real.hh_reward_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=os.environ.get("RLHF_SMOLLM2_GGUF", HUB))
    parser.add_argument("--data", type=Path, default=os.environ.get("RLHF_TEST_DATA"))
    parser.add_argument("--runs", type=Path, help="where runs are kept; default a temporary folder")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "studies" / "hh_reward_models.json")
    parser.add_argument("--limit", type=int, help="only the first N pairs, to try it out")
    parser.add_argument("--probe-pairs", type=int, default=40)
    args = parser.parse_args()
    if args.data is None:
        parser.error("give --data FOLDER, or set RLHF_TEST_DATA")
    with tempfile.TemporaryDirectory() as scratch:
        record = study(args, args.runs or Path(scratch))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({name: row["accuracy"] for name, row in record["evaluation"]["rewards"].items()}, indent=2))


def study(args: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """All figures."""
    pairs = str(Path(args.data) / "hh_rlhf")
    some = [] if args.limit is None else [str(args.limit)]
    environment = {**os.environ, "RLHF_CACHE": str(runs / "cache"), "TOKENIZERS_PARALLELISM": "false"}
    training: dict[str, Any] = {}
    for name, config in MODELS.items():
        alone = name == "bradley_terry"
        section = "dataset" if alone else "reward.pairs"
        where = [f"{section}.path={pairs}", *(f"{section}.limit={n}" for n in some)]
        where += [] if alone else [f"reward.base_model.path={args.model}"]
        training[name] = call(
            [
                "train",
                "--config",
                str(config),
                "--model",
                args.model if alone else "pocket",
                "--run-dir",
                str(runs / name),
                *sets(where),
            ],
            environment,
        )
        summary = json.loads((runs / name / "summary.json").read_text())
        training[name] |= {key: summary[key] for key in ("dropped", "reports", "evaluation_after") if key in summary}
    (ensemble,) = (path.parent for path in (runs / "cache" / "ensembles").glob("*/ensemble.json"))
    ensemble = ensemble.rename(ensemble.with_name("ensemble"))
    output = runs / "evaluation.json"
    evaluation = call(
        [
            "reward",
            "evaluate",
            "--model",
            str(runs / "bradley_terry" / "final"),
            "--model",
            str(ensemble),
            "--pairs",
            pairs,
            "--heldout-fraction",
            str(HELDOUT),
            "--output",
            str(output),
            "--probe-pairs",
            str(args.probe_pairs),
            *(p for n in some for p in ("--limit", n)),
        ],
        environment,
    )
    found = json.loads(output.read_text())
    total = sum(row["seconds"] for row in [*training.values(), evaluation])
    return {
        "command": "python -m scripts.real.hh_reward_models",
        "limit": args.limit,
        "goal_accuracy": GOAL,
        "seconds_total": round(total, 1),
        "training": training,
        "evaluation_cost": evaluation,
        "evaluation": found,
        "commit": commit(),
        "machine": {**machine(), "load_average": os.getloadavg()},
    }


def sets(settings: Sequence[str]) -> list[str]:
    """``--set`` before each."""
    return [part for text in settings for part in ("--set", text)]


def call(arguments: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run one command; its cost in wall and CPU seconds.

    Raises:
        SystemExit: it failed.
    """
    print(" ".join(["rlhf", *arguments[:3], "..."]), file=sys.stderr, flush=True)
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([*RLHF, *arguments], env=environment, check=False)
    if out.returncode:
        raise SystemExit(f"rlhf {arguments[0]} ended with code {out.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.perf_counter() - began, 1), "cpu_seconds": round(cpu, 1)}


if __name__ == "__main__":
    main()

"""Reward hacking in sound: one scorer alone is optimised until the others fall; the composite beside it.

    python -m scripts.real.speech_hacking --folder runs/hacking --record docs/bench/speech_hacking.json

GRPO on pocket-voice, twice with the same seed and sizes: by ``acoustic_proxy`` alone, and by the composite of
`rlhf tts train` with the proxy as a third part. Both record the proxy, DNSMOS P.808 and the phone error rate in every
step; the monitor ``hacking`` compares the first with the second reward and only warns. At the end both voices and the
first one say the validation sentences. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rlhf_core.runs.atomic import write_json
from rlhf_core.sdk import merge_settings, parse_settings, read_jsonl
from rlhf_plugin_tts.speech_data.compare import measure
from rlhf_plugin_tts.speech_data.unseen import VALIDATION
from rlhf_plugin_tts.speech_training.command import run, scorers
from rlhf_plugin_tts.speech_training.recipe import composite, sampling
from scripts.bench.__main__ import commit, machine

PROXY = {
    "reward": {"name": "acoustic_proxy"},
    "normalise": "zscore",
    "statistics": "calibrated",
    "mean": 0.6,
    "std": 0.35,
}
WATCHED = {
    "proxy": "reward/part/proxy/raw",
    "P.808": "reward/part/quality/raw",
    "phone errors": "reward/part/words/per",
}
LEVELS = {0.0: "ok", 1.0: "WARNING", 2.0: "HARD_STOP"}


def configuration(arm: str, steps: int, clips: int, seed: int, jobs: int) -> dict[str, Any]:
    """What `rlhf train` is given. ``single``: all parts but the proxy only record."""
    parts = composite()["parts"]
    if arm == "single":
        parts = {name: {**part, "weight": 0.0} for name, part in parts.items()}
    reward = {
        **composite(),
        "parts": {**parts, "proxy": {**PROXY, "weight": 1.0 if arm == "single" else 0.2, "clip": 10.0}},
    }
    guards = {"most_duration_error": None, "most_clipping": None, "most_silence": None} if arm == "single" else {}
    trainer = {
        **sampling(),
        "name": "grpo",
        "steps": steps,
        "rollout_batch_size": clips,
        "group_size": 8,
        "micro_batch_size": 32,
        "eval_samples": 0,
        "checkpoint_every": 4,
        "reward_workers": jobs,
        "optimizer": {"learning_rate": 5e-4, "warmup_steps": 2},
    }
    second = {**composite(), "guards": {"most_duration_error": None}}
    monitor = {"name": "hacking", "stop": False, "divergence": {"second": second, "samples": 16}}
    return {
        "model": {"path": "pocket-voice"},
        "dataset": {"name": "speech"},
        "reward": {**reward, "guards": guards},
        "trainer": trainer,
        "monitors": [monitor],
        "seed": seed,
    }


def curves(folder: Path) -> dict[str, Any]:
    """Metrics of each step, and the first step at which the monitor spoke."""
    rows = list(read_jsonl(folder / "metrics.jsonl"))
    steps = [row for row in rows if WATCHED["proxy"] in row]
    levels = [(int(r["step"]), float(r["hacking/level"])) for r in rows if "hacking/level" in r]
    alarms = [(step, LEVELS[level]) for step, level in levels if level > 0]
    lines = {name: [float(row[key]) for row in steps] for name, key in WATCHED.items()}
    return {
        **lines,
        "steps": [int(r["step"]) for r in steps],
        "first alarm": alarms[0] if alarms else None,
        "alarms": len(alarms),
    }


def heard(file: Path, model: str, jobs: int) -> dict[str, Any]:
    """Scores of a voice on the validation sentences, measured once."""
    if not file.is_file():
        options = {
            "names": (*scorers(), "acoustic_proxy"),
            "settings": (),
            "seed": 0,
            "before": None,
            "n": 1,
            "jobs": jobs,
        }
        told = {"texts": VALIDATION, "count": len(VALIDATION), "description": "", "max_tokens": 480, "temperature": 1.0}
        write_json(file, {name: row["voice"] for name, row in measure(model, {**options, **told})["table"].items()})
    return json.loads(file.read_text())


def main() -> None:
    """Train both, measure, print, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--clips", type=int, default=64, help="in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="a.b=c of the training")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    table, lines = {"before": heard(args.folder / "before.json", "pocket-voice", args.jobs)}, {}
    for arm in ("single", "composite"):
        config = configuration(arm, args.steps, args.clips, args.seed, args.jobs)
        run(args.folder / arm, merge_settings(config, parse_settings(args.settings)))
        lines[arm] = curves(args.folder / arm)
        table[arm] = heard(args.folder / f"{arm}.json", str(args.folder / arm), args.jobs)
        first, last = ({n: round(lines[arm][n][at], 3) for n in WATCHED} for at in (0, -1))
        print(f"{arm}: first step {first}, last step {last}, first alarm {lines[arm]['first alarm']}", flush=True)
    shown = [
        n for n in ("acoustic_proxy", "wer/wer", "distillmos", "dnsmos/p808", "dnsmos/ovrl") if n in table["before"]
    ]
    print("| voice | " + " | ".join(shown) + " |\n|" + "---|" * (len(shown) + 1))
    for voice, row in table.items():
        cells = [f"{row[n]['mean']:.2f} ({row[n]['low']:.2f} to {row[n]['high']:.2f})" for n in shown]
        print(f"| {voice} | " + " | ".join(cells) + " |")
    if args.record:
        record = {"command": "python -m scripts.real.speech_hacking", "date": time.strftime("%Y-%m-%d")}
        sizes = {"steps": args.steps, "clips": args.clips, "seed": args.seed, "settings": args.settings}
        write_json(
            args.record, record | {"commit": commit(), "machine": machine(), **sizes, "curves": lines, "table": table}
        )


if __name__ == "__main__":
    main()

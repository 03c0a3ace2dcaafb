"""How pocket-voice sounds: words that a recogniser gets wrong and two automatic MOS, beside the voice that it learnt.

    python -m scripts.real.pocket_voice --record docs/bench/pocket_voice.json

Forty sentences that neither was tuned on. flite speaks them at its own speed; pocket-voice samples each once at three
temperatures. Needs Debian's ``flite`` (2.2, voice rms) and ``pip install --no-deps distillmos``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data import Media, Prompt
from rlhf_core.data.atomic import write_json
from rlhf_core.rewards import Sample, score_samples
from rlhf_plugin_tts.speech_data.compare import REWARDS, interval, measure
from rlhf_plugin_tts.speech_data.unseen import UNSEEN
from rlhf_plugin_tts.validate_cli import select
from scripts.bench.__main__ import commit, machine

TEMPERATURES = (0.0, 0.7, 1.0)
SHOWN = ("wer/wer", "wer/cer", "distillmos", "dnsmos/p808", "dnsmos/ovrl")


def spoken_by_flite(folder: Path) -> list[Sample]:
    """The sentences as the voice that was learnt says them."""
    samples = []
    for number, text in enumerate(UNSEEN, 1):
        file = folder / f"{number}.wav"
        subprocess.run(["flite", "-voice", "rms", "-t", text, "-o", str(file)], check=True)
        prompt = Prompt(f"unseen/{number}", ({"role": "user", "content": text},))
        samples.append(Sample(prompt, text, media=(Media("audio", path=str(file)),)))
    return samples


def scored(samples: Sequence[Sample]) -> dict[str, Any]:
    """Mean and 95 % interval of every part of every scorer."""
    table: dict[str, Any] = {}
    for name, (config, ctx) in select(REWARDS, (), "", 0).items():
        with ctx.open("reward", config) as reward:
            rows = score_samples(reward, samples, f"reward '{name}'")
        parts = {"": [r.value for r in rows], **{p: [r.parts[p] for r in rows] for p in rows[0].parts}}
        for part, values in parts.items():
            table[f"{name}/{part}" if part else name] = interval(np.array(values, float), 0)
    return table


def main() -> None:
    """Measure, print a table, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket-voice")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    options = {"names": (), "settings": (), "seed": 0, "before": None, "count": len(UNSEEN), "description": "", "n": 1}
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RLHF_AUDIO", folder)
        table["flite"] = scored(spoken_by_flite(Path(folder)))
        for temperature in TEMPERATURES:
            measured = measure(args.model, {**options, "max_tokens": 480, "temperature": temperature})
            table[f"temperature {temperature}"] = {name: row["voice"] for name, row in measured["table"].items()}
    print("| voice | " + " | ".join(SHOWN) + " |\n|" + "---|" * (len(SHOWN) + 1))
    for voice, row in table.items():
        cells = [f"{row[n]['mean']:.2f} ({row[n]['low']:.2f} to {row[n]['high']:.2f})" for n in SHOWN]
        print(f"| {voice} | " + " | ".join(cells) + " |")
    if args.record:
        record = {"command": "python -m scripts.real.pocket_voice", "date": time.strftime("%Y-%m-%d")}
        write_json(args.record, record | {"commit": commit(), "machine": machine(), "table": table})


if __name__ == "__main__":
    main()

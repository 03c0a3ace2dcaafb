"""Accuracy of a reward model on acoustic features against the number of pairs, clip-disjoint, per engine and mixed.

    python -m scripts.real.speech_reward_pairs --folder runs/reward-pairs --record docs/bench/speech_reward_pairs.json

Two engines say the thirty sentences of the catalogue: ``flite`` (voices kal16, rms, slt and awb at drawn speeds and
pitches) and ``pocket-voice`` (temperature 1, six descriptions). A pair is two clips of one sentence; no clip is in two
pairs; the better one is the one with the higher automatic MOS. Training pairs are drawn from the same rows as the
tested ones, not the same clips. The last test is what a policy's training asks for: two samples of one plain prompt, of
sixty sentences that no pair was trained on. Intervals draw sentences (95 %); accuracies are means over three subsets.

Clips are made, measured and thrown away one batch at a time; the same command goes on where it stopped.
Needs Debian's ``flite`` (2.2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.data import Media, Prompt
from rlhf_core.data.atomic import write_json
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.features import FEATURES
from rlhf_plugin_tts.speech_data.catalogue import DESCRIPTIONS, sentences
from rlhf_plugin_tts.speech_data.compare import score_with, speak
from rlhf_plugin_tts.speech_data.unseen import UNSEEN, VALIDATION
from rlhf_plugin_tts.trained import FeatureEar
from rlhf_plugin_tts.training import HeadSettings, accuracy, train_head
from scripts.bench.__main__ import commit, machine

SIZES = (50, 150, 500, 1000)
TEST = 200
"""Pairs of each engine that are tested on: the first, so that they do not depend on how many are trained on."""
SETTINGS = {"dnsmos": ("dnsmos:only_value=true",)}
SUBSETS = 3
VOICES = ("kal16", "rms", "slt", "awb")
PITCH = {"kal16": 95, "rms": 95, "slt": 165, "awb": 120}
"""Mean pitch in Hz around which the speaker's is drawn."""
Row = dict[str, Any]


def flite_clips(start: int, count: int, folder: Path) -> list[Sample]:
    """Clips number ``start`` and following; each is drawn from its number."""
    samples = []
    for number in range(start, start + count):
        rng = np.random.default_rng(number)
        voice, (name, _, text) = VOICES[int(rng.integers(len(VOICES)))], sentences()[number // 2 % 30]
        file = folder / f"{number}.wav"
        drawn = {
            "duration_stretch": rng.uniform(0.75, 1.4),
            "int_f0_target_mean": PITCH[voice] * rng.uniform(0.8, 1.25),
            "int_f0_target_stddev": rng.uniform(2, 30),
        }
        words = [word for key, value in drawn.items() for word in ("--setf", f"{key}={value:.3f}")]
        subprocess.run(["flite", "-voice", voice, *words, "-t", text, "-o", str(file)], check=True)
        samples.append(
            Sample(Prompt(name, ({"role": "user", "content": text},)), text, media=(Media("audio", path=str(file)),))
        )
    return samples


def pocket_clips(start: int, count: int, folder: Path) -> list[Sample]:
    """As :func:`flite_clips`; the two clips of a pair have different descriptions."""
    del folder
    voices, prompts = list(DESCRIPTIONS.values()), []
    for number in range(start, start + count):
        pair, side = divmod(number, 2)
        name, _, text = sentences()[pair % 30]
        first, second = np.random.default_rng(pair).permutation(len(voices))[:2]
        style = voices[int(second if side else first)]
        prompts.append(Prompt(name, ({"role": "system", "content": style}, {"role": "user", "content": text})))
    return speak("pocket-voice", prompts, 1, seed=start)


def plain_clips(start: int, count: int, folder: Path) -> list[Sample]:
    """Samples of one plain prompt each two, of sentences that are not in the catalogue."""
    del folder
    texts = (*VALIDATION, *UNSEEN)
    prompts = [
        Prompt(t, ({"role": "user", "content": t},)) for t in (texts[n // 2 % 60] for n in range(start, start + count))
    ]
    return speak("pocket-voice", prompts, 1, seed=1_000_000 + start)


ENGINES: dict[str, Callable[[int, int, Path], list[Sample]]] = {
    "same policy": plain_clips,
    "flite": flite_clips,
    "pocket-voice": pocket_clips,
}
"""Name -> how its clips are made."""


def measured(folder: Path, label: str, most: int, test: int) -> dict[str, list[Row]]:
    """Engine -> rows (sentence, features, score), kept in ``folder`` or made now."""
    counts = {name: 2 * (test + (0 if name == "same policy" else most)) for name in ENGINES}
    return {name: list(_engine(folder / f"{name}-{label}.jsonl", name, label, n))[:n] for name, n in counts.items()}


def _engine(file: Path, name: str, label: str, count: int, batch: int = 60) -> Iterator[Row]:
    make, total = ENGINES[name], -(-count // batch) * batch
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    whole = [line for line in lines if line.endswith("\n")]
    whole = whole[: len(whole) // batch * batch]
    if len(whole) != len(lines):
        file.write_text("".join(whole))
    yield from map(json.loads, whole)
    ear = FeatureEar()
    for start in range(len(whole), total, batch):
        with tempfile.TemporaryDirectory() as sounds:
            os.environ["RLHF_AUDIO"] = sounds
            samples = make(start, batch, Path(sounds))
            rows = [
                _row(sample, score, ear)
                for sample, score in zip(samples, score_with((label,), SETTINGS.get(label, ()), 0, samples, 1)[label])
            ]
        with file.open("a") as out:
            out.write("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{name}: {start + batch} of {total} clips", flush=True)
        yield from rows


def _row(sample: Sample, score: Any, ear: FeatureEar) -> Row:
    from rlhf_plugin_tts.audio import ClipError, read_clip

    row: Row = {"sentence": sample.prompt.id, "score": score.value if score.ok else None, "features": None}
    try:
        row["features"] = ear.hear(read_clip(sample)).tolist()
    except ClipError as error:
        row["why"] = str(error)
    return row


def pairs(rows: Sequence[Row]) -> tuple[torch.Tensor, list[str], list[float]]:
    """Vectors ``[P, 2, F]`` (better, worse), sentences, and differences of scores; without unusable pairs."""
    vectors, names, margins = [], [], []
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        assert one["sentence"] == two["sentence"]
        if None in (one["score"], two["score"], one["features"], two["features"]) or one["score"] == two["score"]:
            continue
        better, worse = (one, two) if one["score"] > two["score"] else (two, one)
        vectors.append(torch.tensor([better["features"], worse["features"]]))
        names.append(one["sentence"])
        margins.append(better["score"] - worse["score"])
    return torch.stack(vectors), names, margins


def curve(by_engine: dict[str, list[Row]], sizes: Sequence[int], test: int) -> dict[str, Any]:
    """Trained on -> number of pairs -> tested on -> accuracy, interval and each subset's."""
    made = {name: pairs(rows) for name, rows in by_engine.items()}
    tests = {name: (v[:test], n[:test]) for name, (v, n, _) in made.items()}
    tests["mixed"] = (
        torch.cat([tests[e][0] for e in ("pocket-voice", "flite")]),
        tests["pocket-voice"][1] + tests["flite"][1],
    )
    pools = {name: made[name][0][test:] for name in ("pocket-voice", "flite")}
    table: dict[str, Any] = {}
    for trained in ("pocket-voice", "flite", "mixed"):
        for size in sizes:
            for random in (False, True) if size == sizes[-1] else (False,):
                heads = []
                for subset in range(SUBSETS):
                    rng = np.random.default_rng(subset)
                    names = list(pools) if trained == "mixed" else [trained]
                    draws = [pools[n][rng.permutation(len(pools[n]))[: size // len(names)]] for n in names]
                    heads.append(train_head(torch.cat(draws), HeadSettings(seed=subset, random_labels=random)))
                row = table.setdefault(trained, {}).setdefault(f"{size}{' random labels' if random else ''}", {})
                for name, (vectors, groups) in tests.items():
                    each = [accuracy(head, vectors, groups) for head in heads]
                    row[name] = {
                        "accuracy": float(np.mean([a["accuracy"] for a in each])),
                        "interval": np.mean([a["interval"] for a in each], axis=0).tolist(),
                        "pairs": each[0]["pairs"],
                        "subsets": [a["accuracy"] for a in each],
                    }
    return table


def show(table: dict[str, Any]) -> str:
    """The curve as Markdown."""
    columns = list(next(iter(next(iter(table.values())).values())))
    lines = ["| trained on | pairs | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for trained, sizes in table.items():
        for size, row in sizes.items():
            cells = [f"{c['accuracy']:.3f} ({c['interval'][0]:.3f} to {c['interval'][1]:.3f})" for c in row.values()]
            lines.append(f"| {trained} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make what is missing, train, print, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--label", default="dnsmos", help="reward that says which clip is better")
    parser.add_argument("--pairs", type=int, default=SIZES[-1], help="most training pairs of an engine")
    parser.add_argument("--test", type=int, default=TEST, help="pairs of each test")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rows = measured(args.folder, args.label, args.pairs, args.test)
    table = curve(rows, [size for size in SIZES if size <= args.pairs] or [args.pairs], args.test)
    unusable = {name: sum(r["features"] is None or r["score"] is None for r in one) for name, one in rows.items()}
    margins = {name: float(np.median(pairs(one)[2])) for name, one in rows.items()}
    print(show(table))
    print(
        "median difference of scores in a pair:",
        {k: round(v, 3) for k, v in margins.items()},
        "unusable clips:",
        unusable,
    )
    if args.record:
        record = {"command": "python -m scripts.real.speech_reward_pairs", "date": time.strftime("%Y-%m-%d")}
        more = {"label": args.label, "features": list(FEATURES), "unusable": unusable}
        write_json(
            args.record, record | {"commit": commit(), "machine": machine(), **more, "margins": margins, "table": table}
        )


if __name__ == "__main__":
    main()

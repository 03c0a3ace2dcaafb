"""Trains the language model of pocket-voice on the corpus and writes the voice's folder.

python -m rlhf_plugin_tts.pocket_voice.build.train --corpus DIR --out FOLDER --steps 3000
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from rlhf_plugin_tts.pocket_voice.analysis import CEPSTRA
from rlhf_plugin_tts.pocket_voice.build.styles import Clip, example
from rlhf_plugin_tts.pocket_voice.codec import PocketCodec
from rlhf_plugin_tts.pocket_voice.folder import new_model, vocabulary, write_voice


def kmeans(rows: np.ndarray, codes: int, rounds: int = 25, seed: int = 0) -> np.ndarray:
    """Centres ``[codes, width]``; an empty one is moved to a row drawn at random."""
    draw = np.random.default_rng(seed)
    centres = rows[draw.choice(len(rows), codes, replace=False)].astype(np.float64)
    for _ in range(rounds):
        nearest = ((centres**2).sum(1) - 2 * rows @ centres.T).argmin(1)
        counts = np.bincount(nearest, minlength=codes)
        sums = np.stack([np.bincount(nearest, column, codes) for column in rows.T], 1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        empty = np.flatnonzero(counts == 0)
        centres[empty] = rows[draw.choice(len(rows), len(empty), replace=False)]
    return centres


def neighbours(centres: np.ndarray, count: int = 8) -> np.ndarray:
    """The nearest other codes of every code, ``[codes, count]``."""
    distance = ((centres[:, None] - centres[None]) ** 2).sum(-1)
    return distance.argsort(1)[:, 1 : count + 1]


def read_clips(folder: Path, codec: PocketCodec | None, codes: int) -> tuple[list[Clip], PocketCodec]:
    """Clips of every part of the corpus, and the codec (trained on them if none is given)."""
    parts = [dict(np.load(file)) for file in sorted(folder.glob("corpus*.npz"))]
    rows = np.concatenate([p["values"] for p in parts])
    if codec is None:
        pairs = rows[: len(rows) // 2 * 2, 2:].reshape(-1, 2, CEPSTRA).mean(1)
        pick = np.random.default_rng(1).choice(len(pairs), min(30_000, len(pairs)), replace=False)
        codec = PocketCodec(kmeans(pairs[pick].astype(np.float64), codes).astype(np.float32))
    clips: list[Clip] = []
    for part in parts:
        starts = [0, *part["ends"][:-1]]
        for text, speed, phones, start, end in zip(part["texts"], part["speeds"], part["phones"], starts, part["ends"]):
            values = part["values"][start:end]
            spectrum = codec.quantise(values[:, 0], values[:, 1] > 0.5, values[:, 2:]).spectrum_T2
            timed = tuple((n, float(t)) for n, t in (p.split(":") for p in str(phones).split()))
            clips.append(Clip(str(text), str(speed), timed, values, spectrum))
    return clips, codec


def batches(
    clips: list[Clip], codec: PocketCodec, ids: dict[str, int], tokens: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and labels (-100 for prompt and padding), of similar lengths, about ``tokens`` each; endless."""
    draw = np.random.default_rng(seed)
    near = neighbours(codec.codebook)
    while True:
        rows: list[tuple[list[int], int]] = []
        for i in draw.permutation(len(clips)):
            prompt, completion = example(clips[i], codec, near, draw)
            head = [ids[t] for t in prompt.split()]
            rows.append(([*head, *(ids[t] for t in completion), ids["<eos>"]], len(head)))
        rows.sort(key=lambda r: len(r[0]))
        groups: list[list[tuple[list[int], int]]] = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * len(row[0]) > tokens:
                groups.append([])
            groups[-1].append(row)
        for g in draw.permutation(len(groups)):
            if groups[g]:
                yield _padded(groups[g], ids["<pad>"])


def _padded(rows: list[tuple[list[int], int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(r) for r, _ in rows)
    x = torch.full((len(rows), width), pad)
    y = torch.full((len(rows), width), -100)
    for k, (row, head) in enumerate(rows):
        x[k, : len(row)] = torch.tensor(row)
        y[k, head : len(row)] = torch.tensor(row[head:])
    return x, y


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--decay", type=int, default=300, help="last steps, over which the rate falls to zero")
    parser.add_argument("--tokens", type=int, default=2048, help="per step")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--codes", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clips, codec = read_clips(args.corpus, None, args.codes)
    ids = vocabulary(args.codes)
    model = new_model(args.codes, args.hidden, args.layers)
    averaged = copy.deepcopy(model)
    """Weights averaged over about 50 steps: what is written is usable whenever the training is stopped."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    rows = batches(clips, codec, ids, args.tokens, 0)
    cpu, smooth = time.process_time(), 0.0
    for step in range(args.steps):
        factor = min(1.0, (step + 1) / 50, (args.steps - step) / args.decay)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * factor
        x, y = next(rows)
        loss = model(input_ids=x, attention_mask=(x != 0).long(), labels=y).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, now in zip(averaged.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, max(0.02, 1 / (step + 1)))
        smooth = loss.item() if step == 0 else 0.97 * smooth + 0.03 * loss.item()
        if step % 20 == 0:
            print(f"step {step} loss {smooth:.3f} cpu {time.process_time() - cpu:.0f} s", flush=True)
        if step % 50 == 49 or step == args.steps - 1:
            facts = {"steps": step + 1, "of": args.steps, "loss": round(smooth, 4), "clips": len(clips)}
            facts["processor_seconds"] = round(time.process_time() - cpu)
            write_voice(args.out, averaged, codec, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Speaks the sentences with flite and keeps parameters and phone times of every clip (flite 2.2, voice rms).

python -m rlhf_plugin_tts.pocket_voice.build.corpus --text FILE.jsonl.gz ... --words CMUDICT --out DIR
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from rlhf_plugin_tts.pocket_voice.analysis import analyse
from rlhf_plugin_tts.pocket_voice.build.sentences import sentences

SPEEDS = {"slow": (1.25, 1.45), "": (0.94, 1.06), "fast": (0.7, 0.82)}


def dictionary(file: Path) -> list[str]:
    """Words of a CMU pronouncing dictionary in letters only."""
    words = {line.split()[0] for line in file.read_text().splitlines() if line}
    return sorted(w for w in words if re.fullmatch(r"[a-z]+(?:'[a-z]+)?", w))


def pronunciations(file: Path) -> dict[str, str]:
    """First pronunciation of every word, in lower-case phones; the dictionary has no stress, so no ``ax`` either."""
    rows = (line.split(maxsplit=1) for line in file.read_text().splitlines() if line)
    words = set(dictionary(file))
    return {word: phones.strip().lower() for word, phones in rows if word in words}


def speak(text: str, stretch: float, folder: Path) -> tuple[np.ndarray, list[tuple[str, float]]]:
    """Wave and (phone, seconds at which it begins)."""
    import soundfile

    wav = folder / "clip.wav"
    finished = subprocess.run(
        ["flite", "-voice", "rms", "-psdur", "--setf", f"duration_stretch={stretch}", "-t", text, "-o", str(wav)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ends = [(name, float(end)) for name, end in (p.rsplit(":", 1) for p in finished.split())]
    starts = [0.0, *(end for _, end in ends[:-1])]
    return soundfile.read(wav)[0], [(name, start) for (name, _), start in zip(ends, starts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--words", type=Path, required=True, help="a CMU pronouncing dictionary")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--part", default="0/1", help="K/N: the K-th of N parts of the clips")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    words = dictionary(args.words)
    texts = sentences(args.text, args.count, words)
    lexicon = args.out / "lexicon.txt.gz"
    if args.part.startswith("0/"):
        table = pronunciations(args.words)
        lines = "".join(f"{w} {p}\n" for w, p in sorted(table.items()))
        lexicon.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
        print(f"{len(table)} words, {lexicon.stat().st_size} bytes", flush=True)
    part, parts = map(int, args.part.split("/"))
    record(texts, args.out / f"corpus{part}.npz", part, parts)
    return 0


def record(texts: list[str], file: Path, part: int, parts: int) -> None:
    """Speak every ``parts``-th text and keep what the training needs."""
    draw = random.Random(part)
    rows: list[tuple[str, str, np.ndarray, list[tuple[str, float]]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for text in texts[part::parts]:
            speed = draw.choices(list(SPEEDS), (0.25, 0.5, 0.25))[0]
            wave, phones = speak(text, draw.uniform(*SPEEDS[speed]), Path(folder))
            f0, voiced, cepstra = analyse(wave)
            values = np.concatenate([f0[:, None], voiced[:, None], cepstra], 1).astype(np.float32)
            rows.append((text, speed, values, phones))
            if len(rows) % 200 == 0:
                print(len(rows), flush=True)
    ends = np.cumsum([len(r[2]) for r in rows])
    np.savez(
        file,
        texts=np.array([r[0] for r in rows]),
        speeds=np.array([r[1] for r in rows]),
        phones=np.array([" ".join(f"{n}:{t:.3f}" for n, t in r[3]) for r in rows]),
        values=np.concatenate([r[2] for r in rows]),
        ends=ends,
    )


if __name__ == "__main__":
    sys.exit(main())

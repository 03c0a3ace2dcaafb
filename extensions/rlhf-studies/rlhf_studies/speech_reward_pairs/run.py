"""Trains a head on so many pairs of each engine, and tests it on all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.rewards import Sample, Score
from rlhf_plugin_tts.audio import ClipError, read_clip
from rlhf_plugin_tts.speech_data.compare import score_with
from rlhf_plugin_tts.trained import FeatureEncoder
from rlhf_plugin_tts.training import HeadSettings, accuracy, train_head
from rlhf_studies.speech_reward_pairs.config import SpeechRewardPairsConfig
from rlhf_studies.speech_reward_pairs.engines import ENGINES
from rlhf_study.study import Study
from rlhf_study.tables import interval, markdown

SUBSETS = 3
SAME = "same policy"
"""The engine that is tested on alone."""
Row = dict[str, Any]
Pairs = tuple[torch.Tensor, list[str]]
"""Vectors ``[P, 2, F]`` (better, worse), and sentences."""


class SpeechRewardPairs(Study[SpeechRewardPairsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        test, most = self.config.test, max(self.config.sizes)
        engines = [name for name in ENGINES if name != "flite" or shutil.which("flite")]
        counts = {name: 2 * (test + (0 if name == SAME else most)) for name in engines}
        rows = {name: list(self.measured(folder / f"{name}.jsonl", name, n))[:n] for name, n in counts.items()}
        made = {name: pairs(clips) for name, clips in rows.items()}
        unusable = {name: sum(usable(row) is None for row in clips) for name, clips in rows.items()}
        return {"unusable": unusable, "table": self.curve(made, seed)}

    def measured(self, file: Path, engine: str, count: int) -> Iterator[Row]:
        """Rows (sentence, features, score) of an engine's clips, kept in ``file`` batch by batch."""
        batch, encoder = self.config.batch, FeatureEncoder()
        lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
        complete = [line for line in lines if line.endswith("\n")]
        complete = complete[: len(complete) // batch * batch]
        file.write_text("".join(complete))
        yield from map(json.loads, complete)
        settings = ("dnsmos:only_value=true",) if self.config.label == "dnsmos" else ()
        for start in range(len(complete), count, batch):
            with tempfile.TemporaryDirectory() as sounds:
                os.environ["RLHF_AUDIO"] = sounds
                samples = ENGINES[engine](start, batch, Path(sounds))
                scores = score_with((self.config.label,), settings, 0, samples, 1)[self.config.label]
                rows = [row_of(sample, score, encoder) for sample, score in zip(samples, scores)]
            with file.open("a") as out:
                out.write("".join(json.dumps(row) + "\n" for row in rows))
            yield from rows

    def curve(self, made: Mapping[str, Pairs], seed: int) -> dict[str, Any]:
        test, sizes = self.config.test, self.config.sizes
        tests = {name: (vectors[:test], names[:test]) for name, (vectors, names) in made.items()}
        pools = {name: vectors[test:] for name, (vectors, _) in made.items() if name != SAME}
        mixes = {name: [name] for name in pools}
        if len(pools) > 1:
            mixes["mixed"] = list(pools)
            vectors, sentences = zip(*(tests[name] for name in pools))
            tests["mixed"] = (torch.cat(vectors), sum(sentences, list[str]()))
        table: dict[str, Any] = {}
        for trained, names in mixes.items():
            table[trained] = {}
            for size, labels in [*((size, "") for size in sizes), (sizes[-1], " random labels")]:
                heads = []
                for subset in range(SUBSETS * seed, SUBSETS * seed + SUBSETS):
                    rng = np.random.default_rng(subset)
                    draws = [pools[n][rng.permutation(len(pools[n]))[: size // len(names)]] for n in names]
                    settings = HeadSettings(seed=subset, random_labels=bool(labels))
                    heads.append(train_head(torch.cat(draws), settings))
                table[trained][f"{size}{labels}"] = {name: tested(heads, *rows) for name, rows in tests.items()}
        return table

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        accuracies = next(iter(results.values()))["table"]
        columns = list(next(iter(next(iter(accuracies.values())).values())))
        rows = [
            (trained, size, *(interval((row[c]["accuracy"], *row[c]["interval"])) for c in columns))
            for trained, sizes in accuracies.items()
            for size, row in sizes.items()
        ]
        return markdown(("trained on", "pairs", *columns), rows)


def tested(heads: Sequence[Any], vectors: torch.Tensor, sentences: list[str]) -> dict[str, Any]:
    each = [accuracy(head, vectors, sentences) for head in heads]
    return {
        "accuracy": float(np.mean([a["accuracy"] for a in each])),
        "interval": np.mean([a["interval"] for a in each], axis=0).tolist(),
        "pairs": each[0]["pairs"],
        "subsets": [a["accuracy"] for a in each],
    }


def row_of(sample: Sample, score: Score, encoder: FeatureEncoder) -> Row:
    row: Row = {"sentence": sample.prompt.id, "score": score.value if score.ok else None, "features": None}
    try:
        return {**row, "features": encoder.encode(read_clip(sample)).tolist()}
    except ClipError as error:
        return {**row, "why": str(error)}


def usable(row: Row) -> Row | None:
    return None if row["score"] is None or row["features"] is None else row


def pairs(rows: Sequence[Row]) -> Pairs:
    vectors, names = list[torch.Tensor](), list[str]()
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        if usable(one) and usable(two) and one["score"] != two["score"]:
            better, worse = (one, two) if one["score"] > two["score"] else (two, one)
            vectors.append(torch.tensor([better["features"], worse["features"]]))
            names.append(one["sentence"])
    return torch.stack(vectors), names

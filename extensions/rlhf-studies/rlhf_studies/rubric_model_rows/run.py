"""Graded answers, and how often a model of them prefers the chosen side of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

from rlhf_plugin_datagen.confidence import accuracy
from rlhf_plugin_pocket import load_pairs
from rlhf_studies.common.pocket import pair_margins, pairs_of, write_jsonl
from rlhf_studies.rubric_model_rows.config import COUNTS, RubricModelRowsConfig
from rlhf_studies.rubric_vs_bradley_terry.data import graded
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import Run


class RubricModelRows(Ablation[RubricModelRowsConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        rng = Random(f"grades/{seed}")
        rows = list(graded(rng.sample(load_pairs("train"), max(COUNTS)), rng))[::2]
        files = {str(count): folder / f"{count}.jsonl" for count in COUNTS}
        for name, file in files.items():
            write_jsonl(file, rows[: int(name)])
        files["heldout"] = folder / "heldout.jsonl"
        write_jsonl(files["heldout"], graded(load_pairs("heldout"), rng))
        return files

    def measured(self, run: Run) -> Mapping[str, float]:
        pairs = pairs_of({"name": "pocket/assistant"}, 0)["heldout"]
        return {"accuracy": accuracy(pair_margins("rubric_model", run.final, pairs)).rate}

"""Reward models that have not seen two attributes, and how well they rank answers about those."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

from rlhf_plugin_pocket import load_pairs, of_split, questions
from rlhf_studies.common.pocket import rank_with_gold, sampled_answers, write_jsonl
from rlhf_studies.rubric_downstream.config import RubricDownstreamConfig
from rlhf_studies.rubric_vs_bradley_terry.data import graded
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import Run

ATTRIBUTES = {question: fact.attribute.name for fact, question, _ in questions()}
UNSEEN = sorted(set(ATTRIBUTES.values()))[-2:]
"""Attributes that are left out of training."""


class RubricDownstream(Ablation[RubricDownstreamConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        rng = Random(f"rows/{seed}")
        pairs = [pair for pair in load_pairs("train") if ATTRIBUTES[pair["prompt"]] not in UNSEEN]
        rng.shuffle(pairs)
        grades = list(graded(pairs, rng))
        short = [{**row, "grades": {"concise": row["grades"]["concise"]}} for row in grades]
        files = {f"{name} rows": folder / f"{name}.jsonl" for name in ("pairs", "grades", "short")}
        for file, rows in zip(files.values(), (pairs, grades, short)):
            write_jsonl(file, rows)
        return files

    def measured(self, run: Run) -> Mapping[str, float]:
        """Rank correlation of an arm's reward with gold, over answers about what it has not seen."""
        answers = sampled_answers(len(of_split("heldout")), 1, run.config["seed"])
        outside = [a for a in answers if a.fact.attribute.name in UNSEEN][: self.config.answers]
        return {"rank_outside": rank_with_gold(run.config["reward"], outside)}

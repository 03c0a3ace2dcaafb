"""The same pairs with two kinds of labels."""

from __future__ import annotations

from pathlib import Path
from random import Random

from rlhf_plugin_pocket import gold_score, load_pairs, questions
from rlhf_studies.ai_labels.config import VOLUMES, AiLabelsConfig
from rlhf_studies.common.pocket import Row, write_jsonl
from rlhf_study.ablation.run import Ablation


class AiLabels(Ablation[AiLabelsConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        pairs, rng = load_pairs("train"), Random(f"labels/{seed}")
        rng.shuffle(pairs)
        by_judge = judged(pairs, self.config.error, rng)
        files = {"heldout": folder / "heldout.jsonl"}
        write_jsonl(files["heldout"], load_pairs("heldout"))
        for who, rows in (("human", pairs), ("ai", by_judge)):
            for count in VOLUMES:
                files[f"{who} {count}"] = folder / f"{who}-{count}.jsonl"
                write_jsonl(files[f"{who} {count}"], rows[:count])
        return files


def judged(pairs: list[Row], error: float, rng: Random) -> list[Row]:
    """Pairs as a judge labels them who knows what is gold and errs; sides of the same gold stay as they were."""
    facts = {question: fact for fact, question, _ in questions()}
    rows: list[Row] = []
    for pair in pairs:
        fact, sides = facts[pair["prompt"]], [pair["chosen"], pair["rejected"]]
        sides.sort(key=lambda text: -gold_score(fact.attribute.name, fact.value, text).value)
        if rng.random() < error:
            sides.reverse()
        rows.append({**pair, "chosen": sides[0], "rejected": sides[1]})
    return rows

"""The same answers as pairs and with grades."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from rlhf_plugin_pocket import Fact, gold_score, load_pairs, questions
from rlhf_studies.common.pocket import sampled_answers, write_jsonl
from rlhf_studies.common.rubric import RUBRIC

WRONG_VERDICT, OFF_BY_ONE = 0.1, 0.3


def write_judged(folder: Path, count: int, seed: int) -> None:
    pairs = Random(f"pairs/{seed}").sample(load_pairs("train"), count)
    write_jsonl(folder / "preferences.jsonl", pairs)
    write_jsonl(folder / "grades.jsonl", graded(pairs, Random(f"judge/{seed}")))
    (folder / "rubric.yaml").write_text(json.dumps(RUBRIC))


def graded(pairs: list[dict[str, Any]], rng: Random) -> Iterator[dict[str, Any]]:
    facts = {question: fact for fact, question, _ in questions()}
    for pair in pairs:
        for side in ("chosen", "rejected"):
            yield {
                "id": f"{pair['id']}/{side}",
                "prompt": pair["prompt"],
                "completion": pair[side],
                "grades": grades(facts[pair["prompt"]], pair[side], rng),
            }


def grades(fact: Fact, text: str, rng: Random) -> dict[str, int]:
    gold = gold_score(fact.attribute.name, fact.value, text)
    right = 5 if (gold.right > 0) != (rng.random() < WRONG_VERDICT) else 1

    def near(value: float) -> int:
        off = rng.choice((-1, 1)) if rng.random() < OFF_BY_ONE else 0
        return min(5, max(1, round(1 + 4 * value) + off))

    return {"right": right, "plain": near(gold.plain), "concise": near(gold.concise)}


def write_answers(file: Path, prompts: int, each: int, seed: int) -> None:
    answers = sampled_answers(prompts, each, seed)
    rows = [
        {
            "id": f"{answer.prompt.id}/{n % each}",
            "prompt": str(answer.prompt.messages[-1]["content"]),
            "completion": answer.text,
            "gold": answer.gold,
        }
        for n, answer in enumerate(answers)
    ]
    write_jsonl(file, rows)

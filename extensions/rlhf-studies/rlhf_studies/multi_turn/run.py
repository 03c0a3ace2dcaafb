"""Two reward models a seed, and how often each agrees with the annotator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample
from rlhf_core.runs import win_rate
from rlhf_plugin_pocket import LABEL_TEMPERATURE, Fact, Style, draw_style, facts, render, utility
from rlhf_plugin_reward.config import BradleyTerryConfig
from rlhf_plugin_reward.reward import SingleReward
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.multi_turn.config import MultiTurnConfig
from rlhf_study.runs import train
from rlhf_study.study import Study
from rlhf_study.tables import interval, markdown, mean

CONDITIONS = ("whole conversation", "last turn")
TRAINER = {
    "name": "reward_model",
    "batch_size": 32,
    "micro_batch_size": 32,
    "optimizer": {"learning_rate": 5e-4},
}
Row = dict[str, Any]
"""Turns, chosen, rejected, and whether only truth tells the two apart."""


class MultiTurn(Study[MultiTurnConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        rows = conversations("train", self.config.pairs)
        heldout_rows = conversations("heldout", self.config.heldout)
        return {condition: self.measured(condition, rows, heldout_rows, seed, folder) for condition in CONDITIONS}

    def measured(
        self, condition: str, rows: Sequence[Row], heldout_rows: Sequence[Row], seed: int, folder: Path
    ) -> dict[str, Any]:
        short = condition.replace(" ", "_")
        file = folder / f"{short}.jsonl"
        write_jsonl(file, conversations_of(rows, condition))
        run = train(folder / short, {"seed": seed, "dataset": str(file), "trainer": TRAINER}, self.config.train)
        return {"seconds": run.summary["seconds"], **accuracy(run.final, heldout_rows, condition)}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                seed,
                condition,
                interval(row["accuracy"]),
                interval(row["truth_alone"]),
                f"{row['tokens']:.1f}",
                f"{row['seconds']:.0f}",
            )
            for seed, figures in results.items()
            for condition, row in figures.items()
        ]
        headers = ("seed", "seen", "held-out accuracy", "where truth alone differs", "tokens", "seconds")
        return markdown(headers, rows)


def conversations(split: str, count: int) -> list[Row]:
    rng, rows = Random(f"multi-turn/{split}"), list[Row]()
    while len(rows) < count:
        row = conversation(rng)
        rows += [row] if row else []
    return rows


def conversation(rng: Random) -> Row | None:
    known_fact = rng.choice(list(facts()))
    fact = Fact(known_fact.person, known_fact.attribute, rng.choice(known_fact.attribute.values))
    first, again = rng.sample(known_fact.attribute.questions, 2)
    truth_alone = rng.random() < 0.5
    a, b = draw_style(rng), draw_style(rng)
    right = rng.random() < 0.5
    styles = [replace(a, right=right), replace(a if truth_alone else b, right=not right)]
    texts = [render(fact, style, rng) for style in styles]
    if texts[0] == texts[1]:
        return None
    gap = utility(fact, styles[0], texts[0]) - utility(fact, styles[1], texts[1])
    order = 1 if rng.random() < 1 / (1 + math.exp(-gap / LABEL_TEMPERATURE)) else -1
    turns = [
        {"role": "user", "content": first.format(p=known_fact.person)},
        {"role": "assistant", "content": render(fact, Style(True, "", "", ()), rng)},
        {"role": "user", "content": again.format(p=known_fact.person)},
    ]
    chosen, rejected = texts[::order]
    return {"turns": turns, "chosen": chosen, "rejected": rejected, "truth_alone": truth_alone}


def seen(row: Row, condition: str) -> list[dict[str, str]]:
    return row["turns"] if condition == CONDITIONS[0] else row["turns"][-1:]


def conversations_of(rows: Sequence[Row], condition: str) -> list[dict[str, Any]]:
    return [
        {side: [*seen(row, condition), {"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}
        for row in rows
    ]


def accuracy(model: Path, rows: Sequence[Row], condition: str) -> dict[str, Any]:
    reward = SingleReward.load(BradleyTerryConfig(path=str(model)), "cpu")

    def scores(side: str) -> list[float]:
        samples = [Sample(Prompt(str(i), tuple(seen(row, condition))), row[side]) for i, row in enumerate(rows)]
        return [float(score.value or 0.0) for score in reward.score(samples)]

    chosen, rejected = scores("chosen"), scores("rejected")
    alone = [i for i, row in enumerate(rows) if row["truth_alone"]]
    truth = win_rate([chosen[i] for i in alone], [rejected[i] for i in alone])
    tokens = mean([len(reward.encoder.encode(tuple(seen(row, condition)), row["chosen"])) for row in rows])
    return {"accuracy": list(win_rate(chosen, rejected)), "truth_alone": list(truth), "tokens": tokens}

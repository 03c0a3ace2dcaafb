"""Second rewards: models of pairs that nobody else saw, and spot checks by the gold score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_hacking.config import DivergenceConfig
from rlhf_plugin_hacking.second import SecondReward
from rlhf_plugin_pocket import LABEL_TEMPERATURE, LABEL_WEIGHTS, candidate, of_split, utility
from rlhf_plugin_reward.config import BradleyTerryConfig
from rlhf_studies.common.pocket import gold_of, write_jsonl
from rlhf_study.runs import train

TRAINER = {"name": "reward_model", "batch_size": 32, "micro_batch_size": 32}


class SpotChecks(ComponentConfig):
    """The gold score, as a person would give it to a few completions."""

    name: str = "spot_checks"
    component: ClassVar[str] = "rlhf_studies.monitor_lead_time.second:Spotter"


class Spotter:
    """Asks the data set, which knows the truth."""

    def __init__(self, config: SpotChecks, ctx: BuildContext) -> None:
        self.ctx = ctx

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        return [Score(gold_of(self.ctx, each)) for each in samples]


def second_rewards(
    root: Path, pairs: int, settings: Mapping[str, Any], ctx: BuildContext
) -> dict[str, SecondReward | None]:
    def model(name: str, word_weight: float) -> SecondReward:
        path = reward_model(root / name, word_weight, pairs, settings)
        return SecondReward(DivergenceConfig(second=BradleyTerryConfig(path=str(path))), ctx)

    def checks(number: int) -> SecondReward:
        return SecondReward(DivergenceConfig(second=SpotChecks(), samples=number), ctx)

    return {
        "none": None,
        "reward model, same raters": model("same", LABEL_WEIGHTS["words"]),
        "reward model, fair raters": model("fair", 0.0),
        "16 spot checks": checks(16),
        "64 spot checks": checks(64),
    }


def reward_model(folder: Path, word_weight: float, pairs: int, settings: Mapping[str, Any]) -> Path:
    file = folder.with_name(f"{folder.name}.jsonl")
    if not file.is_file():
        write_jsonl(file, labelled_pairs(folder.name, word_weight, pairs))
    return train(folder, {"seed": 7, "dataset": str(file), "trainer": TRAINER}, settings).final


def labelled_pairs(name: str, word_weight: float, count: int) -> list[dict[str, str]]:
    usual = LABEL_WEIGHTS["words"]
    LABEL_WEIGHTS["words"] = word_weight
    try:
        return _drawn(Random(f"second/{name}"), count)
    finally:
        LABEL_WEIGHTS["words"] = usual


def _drawn(rng: Random, count: int) -> list[dict[str, str]]:
    questions, rows = of_split("train"), list[dict[str, str]]()
    while len(rows) < count:
        fact, question = rng.choice(questions)
        pair = [candidate(fact, rng) for _ in range(2)]  # pyright: ignore[reportPrivateUsage]
        if pair[0][1] == pair[1][1]:
            continue
        best = sorted(pair, key=lambda drawn: utility(fact, *drawn) + LABEL_TEMPERATURE * gumbel(rng))
        rows.append({"prompt": question, "chosen": best[1][1], "rejected": best[0][1]})
    return rows


def gumbel(rng: Random) -> float:
    """A standard Gumbel draw: the difference of two makes the choice a Bradley-Terry draw."""
    return -math.log(-math.log(max(rng.random(), 1e-300)))

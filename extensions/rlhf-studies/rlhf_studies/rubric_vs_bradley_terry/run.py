"""Two reward models a seed, tested, and a policy trained with each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_studies.common.pocket import GOLD, first_and_last
from rlhf_studies.rubric_vs_bradley_terry.config import RubricVsBradleyTerryConfig
from rlhf_studies.rubric_vs_bradley_terry.data import write_answers, write_judged
from rlhf_study.runs import rlhf, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean, spread

TRAINERS = {"preferences": "reward_model", "grades": "rubric_model"}
"""What is learned from -> trainer."""
REWARDS = {"preferences": "bradley_terry", "grades": "rubric_model"}
MODEL = {
    "micro_batch_size": 32,
    "epochs": 2,
    "eval_samples": 0,
    "optimizer": {"learning_rate": 5e-4},
    "checkpoint_every": 0,
}
GRPO = {"name": "grpo", "eval_samples": 200, "kl": {"coefficient": 0}, "checkpoint_every": 0}
EVALUATED = [f"{name}_{when}" for name in GOLD for when in ("before", "after")]


class RubricVsBradleyTerry(Study[RubricVsBradleyTerryConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        if not (folder / "answers.jsonl").is_file():
            write_judged(folder, self.config.pairs, seed)
            write_answers(folder / "answers.jsonl", self.config.prompts, self.config.answers, seed)
        models = {kind: reward_model(kind, folder, seed) for kind in TRAINERS}
        tested = self.tested(models, folder)
        return {
            kind: {
                "tested": tested[kind],
                "policy": self.policy(kind, model, folder, seed) if self.config.steps else None,
            }
            for kind, model in models.items()
        }

    def tested(self, models: Mapping[str, Path], folder: Path) -> dict[str, dict[str, Any]]:
        output = folder / "evaluation.json"
        if not output.is_file():
            chosen = [word for kind in models for word in ("--reward", REWARDS[kind])]
            paths = [word for kind, m in models.items() for word in ("--set", f"{REWARDS[kind]}:path={m}")]
            data = ["--pairs", "pocket/assistant", "--responses", folder / "answers.jsonl", "--gold", "gold"]
            limit = ["--limit", self.config.limit] if self.config.limit else []
            probes = ["--probe", "length", "--probe", "hollow", "--output", output]
            rlhf("reward", "evaluate", *chosen, *paths, *data, *limit, *probes)
        rewards = json.loads(output.read_text())["rewards"]
        return {kind: summary(next(v for name, v in rewards.items() if REWARDS[kind] in name)) for kind in models}

    def policy(self, kind: str, model: Path, folder: Path, seed: int) -> dict[str, float]:
        """Train with one of them; the held-out gold score before and after."""
        reward = {"name": REWARDS[kind], "path": str(model)}
        config = {"seed": seed, "reward": reward, "trainer": {**GRPO, "steps": self.config.steps}}
        before, after = first_and_last(train(folder / f"grpo-{kind}", config, self.config.train))
        return {f"{name}_{when}": row[name] for when, row in (("before", before), ("after", after)) for name in GOLD}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        first = next(iter(results.values()))["preferences"]
        keys = [("tested", key) for key in first["tested"]]
        keys += [("policy", key) for key in EVALUATED] if first["policy"] else []
        rows = [
            (
                key.replace("_", " "),
                *(spread([figures[kind][part][key] for figures in results.values()]) for kind in TRAINERS),
            )
            for part, key in keys
        ]
        return markdown(("", *TRAINERS), rows)


def reward_model(kind: str, folder: Path, seed: int) -> Path:
    trainer_settings: dict[str, Any] = {"batch_size": 32}
    if kind == "grades":
        trainer_settings = {"batch_size": 64, "rubric": str(folder / "rubric.yaml")}
    config = {
        "seed": seed,
        "dataset": {"name": str(folder / f"{kind}.jsonl"), "heldout_fraction": 0},
        "trainer": {"name": TRAINERS[kind], **MODEL, **trainer_settings},
    }
    return train(folder / kind, config).final


def summary(evaluated: Mapping[str, Any]) -> dict[str, Any]:
    hollow: Sequence[Mapping[str, float]] = list(evaluated["probes"]["hollow"].values())
    return {
        "agrees with labels": evaluated["accuracy"],
        "rank correlation with gold": evaluated["gold"]["spearman"],
        "gold of the best of 8": evaluated["best_of_n"][-1]["gold"],
        "two neutral sentences appended": evaluated["probes"]["length"]["2 sentences"]["change"],
        "hollow phrases in front": mean([probe["change"] for probe in hollow]),
    }

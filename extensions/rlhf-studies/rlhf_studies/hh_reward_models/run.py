"""Two trainings and one evaluation, through the public command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_studies.common.outside import data_file, model_path
from rlhf_studies.common.pocket import first_member
from rlhf_studies.common.real import configuration, recorded_cost
from rlhf_studies.hh_reward_models.config import HhRewardModelsConfig
from rlhf_study.runs import Run, rlhf, train
from rlhf_study.study import Study
from rlhf_study.tables import interval, markdown

MODELS = ("bradley_terry", "ensemble")
HELDOUT = 0.25
SUMMARY_KEYS = ("dropped", "reports", "evaluation_after")


class HhRewardModels(Study[HhRewardModelsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        pairs = data_file(self.config.data, "hh_rlhf")
        runs = {name: self.trained(name, pairs, seed, folder) for name in MODELS}
        training = {name: {key: run.summary.get(key) for key in SUMMARY_KEYS} for name, run in runs.items()}
        evaluation = self.evaluated(runs, pairs, folder)
        costs = {name: json.loads((folder / f"{name}.cost.json").read_text()) for name in (*MODELS, "evaluation")}
        return {
            "training": {name: {**costs[name], **training[name]} for name in MODELS},
            "evaluation_cost": costs["evaluation"],
            "evaluation": evaluation,
        }

    def trained(self, name: str, pairs: Path, seed: int, folder: Path) -> Run:
        settings = {**configuration(f"smollm2_hh_{name}"), "seed": seed}
        limit = {} if self.config.limit is None else {"limit": self.config.limit}
        data, model = {"path": str(pairs), **limit}, {"path": model_path(self.config.model)}
        local = {"model": model, "dataset": data}
        if name == "ensemble":
            local = {"reward": {"base_model": model, "pairs": data}}
        with recorded_cost(folder / f"{name}.cost.json"):
            return train(folder / name, settings, local)

    def evaluated(self, runs: Mapping[str, Run], pairs: Path, folder: Path) -> dict[str, Any]:
        output, ensemble = folder / "evaluation.json", folder / "models" / "ensemble"
        if not output.is_file():
            shutil.copytree(first_member(runs["ensemble"]).parent, ensemble, dirs_exist_ok=True)
            models = ["--model", runs["bradley_terry"].final, "--model", ensemble]
            limit = [] if self.config.limit is None else ["--limit", self.config.limit]
            rows = ["--pairs", pairs, "--heldout-fraction", HELDOUT, *limit]
            with recorded_cost(folder / "evaluation.cost.json"):
                rlhf("reward", "evaluate", *models, *rows, "--output", output, "--probe-pairs", self.config.probe_pairs)
        return json.loads(output.read_text())

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows: list[tuple[object, ...]] = []
        for seed, figures in results.items():
            rewards = figures["evaluation"]["rewards"].values()
            for name, reward in zip(MODELS, rewards):
                share = interval((reward["accuracy"], *reward["wilson"]))
                errors = (reward["calibration"][key] for key in ("ece", "ece_rescaled"))
                minutes = figures["training"][name]["cpu_seconds"] / 60
                rows.append((seed, name, share, *(f"{error:.3f}" for error in errors), f"{minutes:.1f}"))
        headers = ("seed", "model", "agrees with people", "calibration error", "after one temperature")
        return markdown((*headers, "processor minutes of training"), rows)

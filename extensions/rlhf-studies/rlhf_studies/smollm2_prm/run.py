"""Two runs, and what both models make of ProcessBench."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.data import read_rows
from rlhf_plugin_prm.evaluate import judge
from rlhf_plugin_prm.first_error import report
from rlhf_studies.common.outside import data_file, model_path
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.common.real import configuration, rounded
from rlhf_studies.common.scores import auc
from rlhf_studies.smollm2_prm.config import Smollm2PrmConfig
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown

ALGOS = ("prm", "orm")


class Smollm2Prm(Study[Smollm2PrmConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        data = data_file(self.config.data)
        common = {"seed": seed, "model": {"path": model_path(self.config.model)}}
        gsm8k = {"dataset": {"path": str(data / "gsm8k" / "train.jsonl.gz")}}
        by_algo: dict[str, Any] = {}
        for algo in ALGOS:
            settings = configuration("smollm2_prm")
            settings["trainer"]["name"] = algo  # the same settings under the other name
            run = train(folder / algo, settings, common, gsm8k, self.config.train)
            by_algo[algo] = measured(run, self.bench(data / "processbench" / "gsm8k.json.gz", folder))
        return by_algo

    def bench(self, file: Path, folder: Path) -> Path:
        if self.config.shortest is None:
            return file
        rows = sorted(read_rows(str(file)).rows, key=lambda row: len(row["problem"]) + sum(map(len, row["steps"])))
        bench_file = folder / "processbench.jsonl"
        write_jsonl(bench_file, rows[: self.config.shortest])
        return bench_file

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                seed,
                algo,
                f"{figures[algo]['processbench']['crossed']['f1']:.3f}",
                f"{figures[algo]['processbench']['chance']:.3f}",
                *(f"{value:.3f}" for value in figures[algo]["answer_auc"].values()),
            )
            for seed, figures in results.items()
            for algo in ALGOS
        ]
        return markdown(("seed", "model", "first-error F1", "chance", "answer AUC: min", "mean", "last"), rows)


def measured(run: Run, bench: Path) -> dict[str, Any]:
    summary, began = run.summary, time.perf_counter()
    judged = judge(str(run.final), str(bench))
    seconds = round(time.perf_counter() - began, 1)
    first_errors = [solution.first_error for solution in judged.solutions]
    return {
        "training": {
            "solutions": summary["train_examples"],
            "steps": summary["steps"],
            "seconds": summary["seconds"],
            "heldout": {when: rounded(summary[f"evaluation_{when}"]) for when in ("before", "after")},
        },
        "processbench": {**report(judged.right, first_errors), "unscored": len(judged.unscored), "seconds": seconds},
        "answer_auc": answer_auc(judged.right, np.array([solution.outcome for solution in judged.solutions])),
    }


def answer_auc(right: Any, outcomes: Any) -> dict[str, float]:
    """How well each reading of the steps tells right answers from wrong ones."""
    readings = {
        "min": np.array([row.min() for row in right]),
        "mean": np.array([row.mean() for row in right]),
        "last": np.array([row[-1] for row in right]),
    }
    return {how: round(auc(scores[outcomes], scores[~outcomes]), 4) for how, scores in readings.items()}

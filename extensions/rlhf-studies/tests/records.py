"""Recorded results, older layouts included, as the figures of each seed that ``Study.table`` reads."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "rlhf_studies"
Seeds = dict[int, dict[str, Any]]


def figures(name: str) -> Seeds:
    """The recorded figures of a study, seed by seed."""
    record = json.loads((ROOT / name / "result.json").read_text())
    if isinstance(record, dict) and {"settings", "seeds", "machine"} <= set(record):
        return {int(seed): found for seed, found in record["seeds"].items()}
    return OLDER[name](record)


def by_seed(rows: list[dict[str, Any]]) -> Seeds:
    """Rows that name their seed."""
    return {row["seed"]: row for row in rows}


def by_key(rows: list[dict[str, Any]], key: str) -> Seeds:
    """Several rows a seed, told apart by ``key``."""
    found: Seeds = {}
    for row in rows:
        found.setdefault(row["seed"], {})[row[key]] = row
    return found


def numbered(found: Mapping[str, Any]) -> Seeds:
    """Figures by seed as text."""
    return {int(seed): figures for seed, figures in found.items()}


def arithmetic(record: Any) -> Seeds:
    """Every evaluation, from the CSV: the older record has the means alone."""
    found: Seeds = {}
    for row in csv.DictReader((ROOT / "arithmetic_algorithms" / "result.csv").open()):
        point = [int(row["step"]), *(float(row[k]) for k in ("seconds", "heldout_accuracy", "trained_accuracy"))]
        found.setdefault(int(row["seed"]), {}).setdefault(row["algorithm"], []).append(point)
    return found


def kissing(record: Mapping[str, Any]) -> Seeds:
    """One row a seed."""
    return by_seed(record["seeds"])


def lead_time(record: Mapping[str, Any]) -> Seeds:
    """Runs called ``seed-N/NAME``."""
    found: Seeds = {}
    for name, run in record["runs"].items():
        found.setdefault(int(name.split("/")[0].removeprefix("seed-")), {})[name] = run
    return found


def gsm8k(record: Mapping[str, Any]) -> Seeds:
    """One seed; everything but the settings is a style."""
    return {0: {style: record[style] for style in ("r1_zero", "plain")}}


OLDER: Mapping[str, Callable[[Any], Seeds]] = {
    "arithmetic_algorithms": arithmetic,
    "composite_weights": lambda record: by_seed(record["results"]),
    "confidence_filtering": lambda record: numbered(record["seeds"]),
    "ensemble_vs_single": lambda record: by_seed(record["results"]),
    "gsm8k_best_of_n": gsm8k,
    "hh_reward_models": lambda record: {0: record},
    "kissing": kissing,
    "lambda_sweep": lambda record: numbered(record["results"]),
    "mbpp_sandbox": lambda record: {0: record},
    "monitor_lead_time": lead_time,
    "multi_turn": lambda rows: by_key(rows, "condition"),
    "pocket_methods": numbered,
    "pocket_recipe": lambda rows: by_key(rows, "changed"),
    "prm_vs_orm": lambda record: by_key(record["results"], "mix"),
    "rubric_vs_bradley_terry": lambda record: by_key(record["runs"], "learned_from"),
    "smollm2_arithmetic": lambda record: {0: record},
    "smollm2_prm": lambda record: {0: record},
    "step_rewards": lambda record: by_seed(record["results"]),
}

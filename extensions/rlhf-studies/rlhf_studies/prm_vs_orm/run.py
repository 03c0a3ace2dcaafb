"""Both models a seed and mix, and what each makes of the same held-out solutions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlhf_core.data import write_json
from rlhf_plugin_prm.first_error import report
from rlhf_plugin_prm.reward import aggregate
from rlhf_studies.common.scores import auc
from rlhf_studies.common.tables import markdown, mean, spread
from rlhf_studies.prm_vs_orm.config import PrmVsOrmConfig
from rlhf_studies.prm_vs_orm.models import WRONG, Target, heldout, learn

TARGETS: Mapping[str, Target] = {"prm": "steps", "orm": "outcome"}
Reading = Literal["orm", "min", "mean", "product", "last"]
READINGS: tuple[Reading, ...] = ("orm", "min", "mean", "product", "last")
FALSE_ALARMS = 0.05


class PrmVsOrm:
    """The study."""

    def __init__(self, config: PrmVsOrmConfig) -> None:
        self.config = config

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """What both make of the same solutions, by mix."""
        return {mix: self.compared(seed, mix, folder) for mix in self.config.mixes}

    def compared(self, seed: int, mix: str, folder: Path) -> dict[str, Any]:
        """One mix."""
        models = {name: self.model(seed, mix, name, folder) for name in TARGETS}
        held = heldout(seed, self.config.chains)
        kinds, first_errors = [kind for kind, _ in held], [solution.first_error for _, solution in held]
        right = {name: [np.array(row) for row in model["right"]] for name, model in models.items()}
        return {
            "solutions": Counter(kinds),
            "readings": {how: flagged(reading(right, how), kinds) for how in READINGS},
            "first_error": {name: report(rows, first_errors) for name, rows in right.items()},
            "training": {name: {k: v for k, v in m.items() if k != "right"} for name, m in models.items()},
        }

    def model(self, seed: int, mix: str, name: str, folder: Path) -> dict[str, Any]:
        """One model's opinion of the held-out solutions, from an earlier call where it is there."""
        file = folder / f"{mix.replace(' ', '_')}-{name}.json"
        if not file.is_file():
            write_json(file, learn(seed, mix, TARGETS[name], self.config.updates, self.config.chains))
        return json.loads(file.read_text())

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        """Share flagged, and F1 of the first wrong step; mean over seeds and lowest to highest."""
        by_mix = {mix: [found[mix] for found in results.values()] for mix in self.config.mixes}
        headers = ("trained on", "reading", "wrong answer", "slip, right answer", "cancelled, right answer")
        shares = markdown(headers, [row for mix, found in by_mix.items() for row in flagged_rows(mix, found)])
        note = "First wrong step, F1 at the threshold chosen on the other half (chance):"
        f1 = markdown(
            ("trained on", "PRM", "ORM read at every step"),
            [(mix, *(first_error(found, name) for name in TARGETS)) for mix, found in by_mix.items()],
        )
        return f"{shares}\n\n{note}\n\n{f1}"


def reading(right: Mapping[str, Sequence[Any]], how: Reading) -> Any:
    """One score per solution: the outcome model's last step, or the process model's steps made into one."""
    if how == "orm":
        return np.array([aggregate(row, "last") for row in right["orm"]])
    return np.array([aggregate(row, how) for row in right["prm"]])


def flagged(scores: Any, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of each wrong kind: the share flagged at a threshold that flags one right solution in 20, and the AUC."""
    of = {kind: scores[[k == kind for k in kinds]] for kind in ("right", *WRONG)}
    threshold = float(np.quantile(of["right"], FALSE_ALARMS))
    return {
        kind: {
            "flagged": round(float((of[kind] < threshold).mean()), 4),
            "auc": round(auc(of["right"], of[kind]), 4),
        }
        for kind in WRONG
    }


def flagged_rows(mix: str, found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """One row per reading."""
    return [
        (
            mix,
            "ORM" if how == "orm" else f"PRM, {how}",
            *(spread([seed["readings"][how][kind]["flagged"] for seed in found], 2) for kind in WRONG),
        )
        for how in READINGS
    ]


def first_error(found: Sequence[Mapping[str, Any]], name: str) -> str:
    """F1, and what scores that know nothing reach."""
    reports = [seed["first_error"][name] for seed in found]
    return f"{spread([r['crossed']['f1'] for r in reports], 2)} ({mean([r['chance'] for r in reports]):.2f})"

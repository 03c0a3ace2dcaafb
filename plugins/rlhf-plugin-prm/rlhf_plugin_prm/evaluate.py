"""A model of steps on a file of labelled solutions: what `rlhf reward first-error` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError, Datasets, DatasetSettings, JsonlConfig
from rlhf_plugin_prm.data.config import ProcessBenchConfig
from rlhf_plugin_prm.examples import Solution, read_solutions
from rlhf_plugin_prm.first_error import Floats, report
from rlhf_plugin_prm.reward import StepReward
from rlhf_plugin_prm.reward_config import PrmRewardConfig
from rlhf_plugin_prm.store import read_card

MOST_LOST = 0.1
"""Largest share of solutions without a score: F1 over the rest, the shorter ones, would be another benchmark's."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Solutions and the probability that each of their steps is right."""

    target: str
    """What the model was trained on: ``steps`` or ``outcome``."""
    solutions: Sequence[Solution]
    right: Sequence[Floats]
    unscored: Sequence[str]
    """Why each of the others has no score: too long, or no finite number."""


def evaluate(
    folder: str, file: str, threshold: float = 0.5, limit: int | None = None, max_length: int | None = None
) -> dict[str, Any]:
    """First-error F1 of a model on a file, with the ``target`` of the model."""
    judged = judge(folder, file, limit, max_length)
    labels = [s.first_error for s in judged.solutions]
    return {"target": judged.target, "unscored": len(judged.unscored), **report(judged.right, labels, threshold)}


def judge(folder: str, file: str, limit: int | None = None, max_length: int | None = None) -> Judged:
    """Score every step of a file's solutions; an outcome model is read at every step as well."""
    config = PrmRewardConfig(path=folder, read="steps", max_length=max_length)
    card = read_card(config.path)
    datasets = _datasets(file, limit)
    solutions = read_solutions(datasets.prompts("train"), card.split, datasets.where)
    wrong = sum(s.first_error >= 0 for s in solutions)
    if wrong in (0, len(solutions)):
        which = "all" if limit is None else "the first"
        raise DatasetError(
            f"{which} {len(solutions)} solutions of '{file}' have {'an' if wrong else 'no'} error",
            fix="give solutions with an error and solutions without; a file sorted by them, "
            "as ProcessBench's are, needs a larger --limit or none",
        )
    right = StepReward.load(config, str(nowhere().device)).probabilities(
        [(s.prompt, s.text, s.steps, s.tools) for s in solutions]
    )
    scored = [(s, p) for s, p in zip(solutions, right) if not isinstance(p, str)]
    reasons = [p for p in right if isinstance(p, str)]
    if len(reasons) > MOST_LOST * len(solutions) or len({s.first_error >= 0 for s, _ in scored}) < 2:
        raise DatasetError(
            f"{len(reasons)} of {len(solutions)} solutions of '{file}' have no score",
            why=f"first: {reasons[0]}",
            fix="--max-length N, if they are too long and the model's context "
            "allows it; else another model, or the file without them",
        )
    return Judged(card.target, [s for s, _ in scored], [p for _, p in scored], reasons)


def _datasets(file: str, limit: int | None) -> Datasets:
    """The file's rows, whichever of the two forms they have."""
    plain = JsonlConfig(path=file)
    plain.preflight(nowhere())
    published = "problem" in plain.build(nowhere()).rows("train")[0]
    source = ProcessBenchConfig(path=file) if published else plain
    settings = {"sources": ({"source": source},), "heldout_fraction": 0.0, "limit": limit}
    return Datasets(DatasetSettings.model_validate(settings), nowhere())


def nowhere() -> BuildContext:
    """What files are read with: no run, no components."""
    return BuildContext(config=cast(Any, None), registry=cast(Any, None), seed=0)

"""Problems of a reasoning-gym task as rows."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.gym.config import GymDataConfig


HELDOUT_SEED = 1 << 24
"""Added for held-out problems: item i of seed s is drawn with seed s + i, so neighbouring seeds share most problems."""


def import_reasoning_gym() -> Any:
    """reasoning-gym itself, whose first import takes seconds."""
    try:
        import reasoning_gym.factory  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            "reasoning-gym is not installed",
            where="dataset.name=reasoning_gym",
            why=str(error),
            fix="pip install 'rlhf-plugin-verifiers[gym]'",
        ) from error
    return reasoning_gym


def create(task: str, settings: Mapping[str, Any], seed: int, size: int) -> Any:
    """A task's generator: ``len``, ``[index]`` and ``score_answer``."""
    reasoning_gym = import_reasoning_gym()
    tasks = reasoning_gym.factory.DATASETS
    if task not in tasks:
        near = difflib.get_close_matches(task, tasks, n=1)
        examples = ", ".join(sorted(tasks)[:8])
        raise ConfigError(
            f"reasoning-gym has no task '{task}'",
            where="dataset.task",
            fix=f"did you mean '{near[0]}'?" if near else f"one of {examples}, ...",
        )
    try:
        return reasoning_gym.create_dataset(task, seed=seed, size=size, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"reasoning-gym task '{task}' refuses its settings",
            where="dataset.settings",
            why=str(error),
            fix="compare with the task's Config in reasoning-gym",
        ) from error


def check_task(config: GymDataConfig) -> None:
    _ = create(config.task, config.settings, config.seed, 1)[0]


class GymSource:
    """See :class:`GymDataConfig`. A row carries the problem as JSON too, since some tasks (``acre``, ``ransom_note``,
    ...) depend on Python's hash seed; to resume a run on one, set PYTHONHASHSEED."""

    def __init__(self, config: GymDataConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Problems of a split; held-out ones that are training problems too are left out."""
        c = self.config
        if split == "train":
            return self._generate(c.seed, c.size)
        held_out = self._generate(c.seed + HELDOUT_SEED, c.heldout_size)
        training_prompts = {row["prompt"] for row in self.rows("train")} if held_out else set()
        return [row for row in held_out if row["prompt"] not in training_prompts]

    def _generate(self, seed: int, size: int) -> list[dict[str, Any]]:
        problems = create(self.config.task, self.config.settings, seed, size) if size else []
        return [self._row(problems[i], seed, i) for i in range(size)]

    def _row(self, problem: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
        key = {
            "task": self.config.task,
            "settings": self.config.settings,
            "seed": seed,
            "index": index,
            "problem": json.loads(json.dumps(problem, default=str)),
        }
        row = {"id": f"{self.config.task}-{seed}-{index}", "prompt": problem["question"] + self.config.instruction}
        answer = {} if problem["answer"] is None else {"answer": str(problem["answer"])}
        return {**row, **answer, "reasoning_gym": key}

    def where(self, split: str, number: int) -> str:
        return f"reasoning-gym {self.config.task}, {split} problem {number}"

"""The cycles of a flywheel: each trains a reward model and keeps the pairs that it is surest of for the next."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rlhf_core.config import Registry, RlhfError, UserError, parse_settings
from rlhf_core.data import DatasetError, PreferencePair, write_json
from rlhf_plugin_datagen.confidence import accuracy, confidences, row_of, top
from rlhf_plugin_datagen.filtering import scored, write_rows
from rlhf_plugin_datagen.outside import bare_name, open_datasets
from rlhf_plugin_datagen.store import check_settings


@dataclass(frozen=True)
class Training:
    name: str
    cycle: int
    how: str


class Flywheel:
    """The phases of one flywheel, each found again by its files."""

    def __init__(self, registry: Registry, folder: Path, options: dict[str, Any]) -> None:
        self.registry, self.folder, self.options = registry, folder, options
        rows, self.settings = split_settings(options["settings"])
        data = open_datasets(registry, options["dataset"], options["seed"], **rows)
        pairs_of_split = {split: data.pairs(split) for split in ("train", "heldout")}
        check_enough(pairs_of_split["train"], pairs_of_split["heldout"], options)
        folder.mkdir(parents=True, exist_ok=True)
        self.results = folder / "flywheel.json"
        check_settings(self.results, {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()})
        for name, split in (("heldout", "heldout"), ("cycle0", "train")):
            if not self.pairs_file(name).is_file():
                write_rows(self.pairs_file(name), [plain(p) for p in pairs_of_split[split]])
        if not self.results.is_file():
            write_json(self.results, {"trainings": []})

    def pairs_file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def run(self) -> dict[str, Any]:
        """Train and filter what is not done yet, and return the whole result."""
        for cycle in range(self.options["cycles"] + 1):
            for training in self.trainings(cycle):
                finished_trainings = json.loads(self.results.read_text())["trainings"]
                if training.name not in [t["name"] for t in finished_trainings]:
                    write_json(self.results, {"trainings": [*finished_trainings, self.train(training)]})
            if cycle < self.options["cycles"]:
                self.filter(cycle)
        rows = json.loads(self.results.read_text())["trainings"]
        return {**self.options, "run_dir": str(self.folder), "trainings": with_changes(rows)}

    def trainings(self, cycle: int) -> list[Training]:
        share = f"{self.options['keep']:.0%}"
        if cycle == 0:
            return [Training("cycle0", 0, "all pairs")]
        surest = Training(f"cycle{cycle}", cycle, f"top {share} by cycle-{cycle - 1} margin")
        control = Training(f"control{cycle}", cycle, "as many, at random")
        return [surest, control] if self.options["control"] else [surest]

    def train(self, training: Training) -> dict[str, Any]:
        run = self.folder / f"{training.name}-run"
        pairs, all_pairs = len(self.read(training.name)), len(self.read("cycle0"))
        if not finished(run):
            train(self.train_arguments(training, run, epochs=all_pairs / pairs))
        measured = accuracy(self.margins(run, "heldout"))
        return {
            "name": training.name,
            "cycle": training.cycle,
            "how": training.how,
            "pairs": pairs,
            "accuracy": measured.rate,
            "low": measured.low,
            "high": measured.high,
            "heldout_pairs": measured.n,
            "model": str(run / "final"),
        }

    def train_arguments(self, training: Training, run: Path, epochs: float) -> list[str]:
        """Arguments of `rlhf train`; ``epochs`` gives as many updates as the first training made."""
        if (run / "plan.json").is_file():
            return ["--resume", str(run)]
        arguments = ["--algo", "reward_model", "--model", self.options["model"], "--seed", str(self.options["seed"])]
        arguments += ["--dataset", str(self.pairs_file(training.name))]
        arguments += ["--set", f"dataset.heldout_path={self.pairs_file('heldout')}", "--run-dir", str(run)]
        for text in self.settings:
            arguments += ["--set", text]
        if self.options["same_updates"]:
            arguments += ["--set", f"trainer.epochs={epochs}"]
        return arguments

    def filter(self, cycle: int) -> None:
        """Write the next cycle's pairs: the surest of this one's, and a random control of the same number."""
        missing_files = [n for n in (f"cycle{cycle + 1}", f"control{cycle + 1}") if not self.pairs_file(n).is_file()]
        if not missing_files:
            return
        pairs = self.read(f"cycle{cycle}")
        margins = self.margins(self.folder / f"cycle{cycle}-run", f"cycle{cycle}")
        values = confidences(margins, pairs, self.options["by"], 0)
        kept_rows = top(values, self.options["keep"], [""] * len(pairs))
        write_rows(self.pairs_file(f"cycle{cycle + 1}"), [row_of(pairs[i], margins[i], {}) for i in kept_rows])
        all_pairs = self.read("cycle0")
        chance = confidences([], all_pairs, "random", self.options["seed"])
        drawn_rows = top(chance, len(kept_rows) / len(all_pairs), [""] * len(all_pairs))
        write_rows(self.pairs_file(f"control{cycle + 1}"), [plain(all_pairs[i]) for i in drawn_rows])

    def margins(self, run: Path, name: str) -> list[float | None]:
        """Margins of the pairs of one file under a trained reward model."""
        return scored(self.registry, str(run / "final"), None, (), self.read(name), self.options["seed"])

    def read(self, name: str) -> list[PreferencePair]:
        datasets = open_datasets(self.registry, str(self.pairs_file(name)), heldout_fraction=0.0)
        return [bare_name(datasets, pair) for pair in datasets.pairs("train")]


def split_settings(settings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(settings of the pairs' data set, those of the trainings)."""
    rows = [text for text in settings if text.strip().startswith("dataset.")]
    return parse_settings(rows).get("dataset", {}), [text for text in settings if text not in rows]


def check_enough(train: Sequence[Any], heldout: Sequence[Any], options: dict[str, Any]) -> None:
    """Refuse data of which the last cycle would have nothing left, or that nothing can be measured on."""
    pairs_left = len(train) * options["keep"] ** options["cycles"]
    if pairs_left < 2 or len(heldout) < 2:
        raise DatasetError(
            f"{len(train)} pairs to train on and {len(heldout)} held out are too few",
            why=f"after {options['cycles']} cycles {pairs_left:.1f} would be left",
            fix="give more pairs, or lower --cycles",
        )


def train(arguments: Sequence[str]) -> None:
    click.echo(f"rlhf train {' '.join(arguments)}", err=True)
    code = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", "train", *arguments], stdout=subprocess.DEVNULL, check=False
    ).returncode
    if code:
        kind = UserError if code == 2 else RlhfError
        raise kind(
            f"training a reward model ended with exit code {code}",
            why="its own message is above",
            fix="fix that; the same command goes on from here",
        )


def finished(run: Path) -> bool:
    summary = run / "summary.json"
    return (run / "final").is_dir() and summary.is_file() and json.loads(summary.read_text())["status"] == "completed"


def plain(pair: PreferencePair) -> dict[str, Any]:
    return {k: v for k, v in row_of(pair, None, {}).items() if k != "confidence"}


def with_changes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    accuracy_of = {row["name"]: row["accuracy"] for row in rows}
    changed: list[dict[str, Any]] = []
    for row in rows:
        before = accuracy_of.get(f"cycle{row['cycle'] - 1}")
        changed.append({**row, "change": None if before is None else row["accuracy"] - before})
    return changed

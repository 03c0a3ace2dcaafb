"""`rlhf data flywheel`: train a reward model, keep the pairs that it is surest of, train on these, and again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.sdk import Choice

if TYPE_CHECKING:
    from rlhf_core.api import PreferencePair
    from rlhf_core.sdk import Registry


@click.command()
@click.option("--dataset", default="pocket/assistant", show_default=True, metavar="D", help="Preference pairs.")
@click.option("--model", default="pocket", show_default=True, metavar="M", help="Trunk of the reward models.")
@click.option(
    "--run-dir",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Everything is kept here; the same command goes on where it stopped.",
)
@click.option("--cycles", type=click.IntRange(1), default=2, show_default=True, help="Filter and retrain so often.")
@click.option(
    "--keep",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="Share of a cycle's pairs that the next is trained on.",
)
@click.option(
    "--by",
    type=Choice(("absolute", "signed")),
    default="absolute",
    show_default=True,
    help="Size of the margin, or the margin itself.",
)
@click.option("--control", is_flag=True, help="Also train on as many pairs drawn at random, each cycle.")
@click.option(
    "--same-updates",
    is_flag=True,
    help="Walk smaller sets more often, so that every training makes as many updates as the first.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="a.b=c",
    help="One setting of the trainings, or dataset.NAME=... of the pairs. Repeatable.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def flywheel(folder: Path, as_json: bool, **options: Any) -> None:
    """Train a reward model, keep the pairs it is surest of, retrain on them, in cycles.

    Accuracy is on the same held-out pairs every time, which are never filtered.

    \b
    rlhf data flywheel --run-dir runs/wheel
    rlhf data flywheel --dataset pairs.jsonl --model ./trunk --control --run-dir runs/wheel
    """
    from rlhf_core.sdk import emit_json, open_registry, set_up_logging

    set_up_logging()
    wheel = Wheel(open_registry(), folder, options)
    result = wheel.run()
    emit_json(result) if as_json else show(result)


@dataclass(frozen=True)
class Training:
    """One reward model to train.

    Example:
        Training("cycle1", 1, "top 50% by cycle-0 margin")
    """

    name: str
    cycle: int
    how: str


class Wheel:
    """The phases of one flywheel, each found again by its files.

    Args:
        registry: installed components.
        folder: where everything is kept.
        options: those of the command.

    Raises:
        UserError: the folder holds another flywheel, or the data cannot be used.
    """

    def __init__(self, registry: Registry, folder: Path, options: dict[str, Any]) -> None:
        from rlhf_core.sdk import write_json
        from rlhf_plugin_datagen.filtering import write_rows
        from rlhf_plugin_datagen.outside import open_datasets
        from rlhf_plugin_datagen.store import check_settings

        self.registry, self.folder, self.options = registry, folder, options
        rows, self.settings = split_settings(options["settings"])
        data = open_datasets(registry, options["dataset"], options["seed"], **rows)
        found = {split: data.pairs(split) for split in ("train", "heldout")}
        check_enough(found["train"], found["heldout"], options)
        folder.mkdir(parents=True, exist_ok=True)
        self.results = folder / "flywheel.json"
        check_settings(self.results, {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()})
        for name, split in (("heldout", "heldout"), ("cycle0", "train")):
            if not self.pairs_file(name).is_file():
                write_rows(self.pairs_file(name), [plain(p) for p in found[split]])
        if not self.results.is_file():
            write_json(self.results, {"trainings": []})

    def pairs_file(self, name: str) -> Path:
        """Pairs that a training uses."""
        return self.folder / f"{name}.jsonl"

    def run(self) -> dict[str, Any]:
        """Train and filter what is not done yet, and return the whole result."""
        from rlhf_core.sdk import write_json

        for cycle in range(self.options["cycles"] + 1):
            for training in self.trainings(cycle):
                done = json.loads(self.results.read_text())["trainings"]
                if training.name not in [t["name"] for t in done]:
                    write_json(self.results, {"trainings": [*done, self.train(training)]})
            if cycle < self.options["cycles"]:
                self.filter(cycle)
        rows = json.loads(self.results.read_text())["trainings"]
        return {**self.options, "run_dir": str(self.folder), "trainings": with_changes(rows)}

    def trainings(self, cycle: int) -> list[Training]:
        """The reward models of one cycle."""
        share = f"{self.options['keep']:.0%}"
        if cycle == 0:
            return [Training("cycle0", 0, "all pairs")]
        sure = Training(f"cycle{cycle}", cycle, f"top {share} by cycle-{cycle - 1} margin")
        chance = Training(f"control{cycle}", cycle, "as many, at random")
        return [sure, chance] if self.options["control"] else [sure]

    def train(self, training: Training) -> dict[str, Any]:
        """Train one and measure it on the held-out pairs; an interrupted training goes on."""
        from rlhf_plugin_datagen.confidence import accuracy

        run = self.folder / f"{training.name}-run"
        size, whole = (len(self.read(n)) for n in (training.name, "cycle0"))
        if not finished(run):
            command = (
                ["--resume", str(run)]
                if (run / "plan.json").is_file()
                else [
                    "--algo",
                    "reward_model",
                    "--model",
                    self.options["model"],
                    "--seed",
                    str(self.options["seed"]),
                    "--dataset",
                    str(self.pairs_file(training.name)),
                    "--set",
                    f"dataset.heldout_path={self.pairs_file('heldout')}",
                    "--run-dir",
                    str(run),
                    *(piece for text in self.settings for piece in ("--set", text)),
                    *(("--set", f"trainer.epochs={whole / size}") if self.options["same_updates"] else ()),
                ]
            )
            train(command)
        measured = accuracy(self.margins(run, "heldout"))
        return {
            "name": training.name,
            "cycle": training.cycle,
            "how": training.how,
            "pairs": size,
            "accuracy": measured.rate,
            "low": measured.low,
            "high": measured.high,
            "heldout_pairs": measured.n,
            "model": str(run / "final"),
        }

    def filter(self, cycle: int) -> None:
        """Write the next cycle's pairs: the surest of this one's, and a random control of the same number."""
        from rlhf_plugin_datagen.confidence import confidences, row_of, top
        from rlhf_plugin_datagen.filtering import write_rows

        after = [n for n in (f"cycle{cycle + 1}", f"control{cycle + 1}") if not self.pairs_file(n).is_file()]
        if not after:
            return
        pairs = self.read(f"cycle{cycle}")
        found = self.margins(self.folder / f"cycle{cycle}-run", f"cycle{cycle}")
        values = confidences(found, pairs, self.options["by"], 0)
        kept = top(values, self.options["keep"], [""] * len(pairs))
        write_rows(self.pairs_file(f"cycle{cycle + 1}"), [row_of(pairs[i], found[i], {}) for i in kept])
        whole = self.read("cycle0")
        drawn = top(confidences([], whole, "random", self.options["seed"]), len(kept) / len(whole), [""] * len(whole))
        write_rows(self.pairs_file(f"control{cycle + 1}"), [plain(whole[i]) for i in drawn])

    def margins(self, run: Path, name: str) -> list[float | None]:
        """Margins of some pairs under a trained reward model."""
        from rlhf_plugin_datagen.filtering import scored

        return scored(self.registry, str(run / "final"), None, (), self.read(name), self.options["seed"])

    def read(self, name: str) -> list[PreferencePair]:
        """Pairs of a file of this folder."""
        from rlhf_plugin_datagen.outside import open_datasets, own_name

        datasets = open_datasets(self.registry, str(self.pairs_file(name)), heldout_fraction=0.0)
        return [own_name(datasets, pair) for pair in datasets.pairs("train")]


def split_settings(settings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(settings of the pairs' data set, those of the trainings).

    Raises:
        ConfigError: one without ``=``.
    """
    from rlhf_core.sdk import parse_settings

    rows = [text for text in settings if text.strip().startswith("dataset.")]
    return parse_settings(rows).get("dataset", {}), [text for text in settings if text not in rows]


def check_enough(train: Sequence[Any], heldout: Sequence[Any], options: dict[str, Any]) -> None:
    """Refuse data of which the last cycle would have nothing left, or that nothing can be measured on.

    Raises:
        DatasetError: says how many pairs there are.
    """
    from rlhf_core.api import DatasetError

    left = len(train) * options["keep"] ** options["cycles"]
    if left < 2 or len(heldout) < 2:
        raise DatasetError(
            f"{len(train)} pairs to train on and {len(heldout)} held out are too few",
            why=f"after {options['cycles']} cycles {left:.1f} would be left",
            fix="give more pairs, or lower --cycles",
        )


def train(arguments: Sequence[str]) -> None:
    """`rlhf train` in a process of its own.

    Raises:
        RlhfError: it failed; its own message went to stderr. UserError where it says that the input was wrong.
    """
    from rlhf_core.api import RlhfError, UserError

    click.echo(f"rlhf train {' '.join(arguments)}", err=True)
    code = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", "train", *arguments], stdout=subprocess.DEVNULL, check=False
    ).returncode
    if code:
        kind = UserError if code == 2 else RlhfError
        raise kind(
            f"training a reward model ended with exit code {code}",
            why="its own message is above",
            fix="mend that; the same command goes on from here",
        )


def finished(run: Path) -> bool:
    """Whether a run has made all its steps and kept its model."""
    summary = run / "summary.json"
    return (run / "final").is_dir() and summary.is_file() and json.loads(summary.read_text())["status"] == "completed"


def plain(pair: PreferencePair) -> dict[str, Any]:
    """A pair as a JSON line, without a margin."""
    from rlhf_plugin_datagen.confidence import row_of

    return {k: v for k, v in row_of(pair, None, {}).items() if k != "confidence"}


def with_changes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each training with its gain over the cycle before."""
    by_name = {r["name"]: r["accuracy"] for r in rows}
    before = {r["name"]: by_name.get(f"cycle{r['cycle'] - 1}") for r in rows}
    return [{**r, "change": None if before[r["name"]] is None else r["accuracy"] - before[r["name"]]} for r in rows]


def show(result: dict[str, Any]) -> None:
    """The table of cycles."""
    from rlhf_core.sdk import table

    table(
        ("cycle", "pairs", "trained on", "accuracy", "95% interval", "change"),
        [
            (
                t["cycle"],
                t["pairs"],
                t["how"],
                f"{t['accuracy']:.1%}",
                f"{t['low']:.1%} to {t['high']:.1%}",
                "" if t["change"] is None else f"{100 * t['change']:+.1f} pp",
            )
            for t in result["trainings"]
        ],
    )
    click.echo(f"\non {result['trainings'][0]['heldout_pairs']} held-out pairs; everything is in {result['run_dir']}")

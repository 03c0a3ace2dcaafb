"""One run per algorithm and seed; table, CSV of every evaluation, and plot."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_studies.arithmetic_algorithms.config import ArithmeticAlgorithmsConfig
from rlhf_studies.common.plots import panels
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean

ACCURACY, TRAINED = "eval/reward/part/answer", "reward/part/answer"
SUMS = {"name": "pocket", "subset": "arithmetic"}
SHARED: dict[str, Any] = {
    # Four copies of the 139 held-out sums: each is asked four times, or chance would decide between the algorithms.
    "dataset": {"sources": [{"source": SUMS, "label": f"copy{n}"} for n in range(1, 5)]},
    "reward": {"name": "verifier"},
    "trainer": {
        "rollout_batch_size": 256,
        "train_batch_size": 64,
        "epochs_per_rollout_batch": 1,
        "micro_batch_size": 64,
        "sampling": {"max_tokens": 16},
        "optimizer": {"learning_rate": 3e-4, "warmup_steps": 4},
        "kl": {"coefficient": 0, "track": False},
        "eval_every": 10,
        "eval_samples": 1000,
        "checkpoint_every": 0,
        "trace_prompts": 0,
    },
}
CHANGES: Mapping[str, dict[str, Any]] = {
    # A critic that knows nothing yet is no baseline: it learns alone first, and faster. No KL, as for the others. Eight
    # completions of a prompt, as for the others: with one of each it sees eight times as many sums and learns more.
    "ppo": {
        "trainer": {"kl": {"controller": "fixed"}, "group_size": 8},
        "advantage": {"name": "gae", "critic": {"learning_rate": 1e-3}, "warmup_steps": 3},
    },
    # The paper's 3e-4 is for answers of thousands of tokens: the geometric mean over ten moves a hundred times as far.
    "gspo": {"loss": {"name": "gspo", "clip_range": 0.03, "clip_range_high": 0.04}},
}
PLOTTED = (
    ("step", "accuracy", "step", "held-out accuracy (sampled)"),
    ("seconds", "accuracy", "seconds of rollout, reward and update", "held-out accuracy (sampled)"),
    ("step", "trained", "step", "accuracy on the sums trained on (sampled)"),
)


class Point(NamedTuple):
    """One held-out evaluation, and training until then."""

    step: int
    seconds: float
    """Of rollout, reward and update so far."""
    accuracy: float
    """Share of right answers to held-out sums, sampled at temperature 1."""
    trained: float
    """The same of the sums trained on, over the steps since the last evaluation (at step 0 the first five steps)."""


Curves = Mapping[str, Sequence[Sequence[Point]]]
"""Algorithm -> the points of each seed."""


class ArithmeticAlgorithms(Study[ArithmeticAlgorithmsConfig]):
    def settings(self, algorithm: str, seed: int) -> list[Mapping[str, Any]]:
        """The layers of one run's configuration; later ones win."""
        settings = {"seed": seed, "trainer": {"name": algorithm, "steps": self.config.steps}}
        return [SHARED, CHANGES.get(algorithm, {}), settings, self.config.train]

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        by_algorithm: dict[str, Any] = {}
        for algorithm in self.config.algorithms:
            run = train(folder / algorithm, *self.settings(algorithm, seed))
            run.drop_models()
            by_algorithm[algorithm] = points(run)
        return by_algorithm

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        headers = "algorithm,seeds,held out; before,after; mean,lowest to highest seed,share of the best"
        headers += ",trained on; before,after,seconds"
        rows = [
            (
                *(row["algorithm"], row["seeds"], f"{row['before']:.3f}", f"{row['mean']:.3f}"),
                f"{row['low']:.3f} to {row['high']:.3f}",
                *(f"{row['share_of_best']:.0%}", f"{row['trained_before']:.3f}", f"{row['trained']:.3f}"),
                f"{row['seconds']:.0f}",
            )
            for row in summarise(by_algorithm(results))
        ]
        return markdown([h.replace(";", ",") for h in headers.split(",")], rows)

    def save(self, results: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
        with (folder / "result.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["algorithm", "seed", "step", "seconds", "heldout_accuracy", "trained_accuracy"])
            for algorithm in self.config.algorithms:
                for seed, figures in results.items():
                    for p in (Point(*p) for p in figures[algorithm]):
                        writer.writerow(
                            [algorithm, seed, p.step, f"{p.seconds:.2f}", f"{p.accuracy:.4f}", f"{p.trained:.4f}"]
                        )
        plot(by_algorithm(results), folder / "result.png")


def points(run: Run) -> list[Point]:
    curve, seconds, since = list[Point](), 0.0, list[float]()
    first = [row[TRAINED] for row in run.rows(TRAINED)][:5]
    for row in run.rows():
        seconds += sum(row.get("time", {}).values())
        if TRAINED in row:
            since.append(row[TRAINED])
        if ACCURACY in row:
            curve.append(Point(row["step"], seconds, row[ACCURACY], mean(since or first)))
            since = []
    return curve


def by_algorithm(results: Mapping[int, Mapping[str, Any]]) -> Curves:
    names = next(iter(results.values()))
    return {name: [[Point(*p) for p in figures[name]] for figures in results.values()] for name in names}


def summarise(curves: Curves) -> list[dict[str, Any]]:
    """One row per algorithm: final accuracy over the seeds, its share of the best mean, seconds of training."""
    rows: list[dict[str, Any]] = []
    for algorithm, seeds in curves.items():
        first, last = [points[0] for points in seeds], [points[-1] for points in seeds]
        ends = [p.accuracy for p in last]
        rows.append(
            {
                "algorithm": algorithm,
                "seeds": len(ends),
                "before": mean([p.accuracy for p in first]),
                "mean": mean(ends),
                "low": min(ends),
                "high": max(ends),
                "trained_before": mean([p.trained for p in first]),
                "trained": mean([p.trained for p in last]),
                "seconds": mean([p.seconds for p in last]),
            }
        )
    best = max(row["mean"] for row in rows)
    return [{**row, "share_of_best": row["mean"] / best if best else 0.0} for row in rows]


def plot(curves: Curves, file: Path) -> None:
    with panels(file, 1, 3, (15, 4.5)) as axes:
        for panel, (across, up, xlabel, ylabel) in zip(axes or (), PLOTTED):
            for algorithm, seeds in curves.items():
                evaluations = list(zip(*seeds))
                along = [mean([getattr(p, across) for p in at]) for at in evaluations]
                values = [[getattr(p, up) for p in at] for at in evaluations]
                line = panel.plot(along, [mean(v) for v in values], label=algorithm, linewidth=1.5)[0]
                low, high = [min(v) for v in values], [max(v) for v in values]
                panel.fill_between(along, low, high, color=line.get_color(), alpha=0.08)
            panel.set(xlabel=xlabel, ylabel=ylabel)
        if axes:
            axes[0].legend()

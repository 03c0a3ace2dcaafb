"""Seven algorithms on the same task: pocket/arithmetic, the numeric verifier, several seeds, held-out accuracy.

    python scripts/studies/arithmetic_algorithms.py --jobs 2
    python scripts/studies/arithmetic_algorithms.py --report      # runs nothing: the figures of the runs there are

All share the task, the batch, four updates per rollout batch, learning rate and number of steps (``SHARED``); the rest
is the algorithm's own recipe, but for what ``OWN`` changes and says why. A run whose folder is complete is not run
again.
Writes OUT.json (figures and settings), OUT.csv (every evaluation), OUT.md (the table) and OUT.png.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.plan import library_versions
from rlhf_core.runs.jsonl import read_jsonl

ALGORITHMS = ("ppo", "grpo", "dr_grpo", "dapo", "gspo", "rloo", "cispo")
ACCURACY, TRAINED = "eval/reward/part/answer", "reward/part/answer"
COPY = "{{source: {{name: pocket, subset: arithmetic}}, label: copy{}}}"
SHARED = {
    # Four copies of the 139 held-out sums: each is asked four times, or chance would decide between the algorithms.
    "dataset": f"{{sources: [{', '.join(COPY.format(n) for n in range(1, 5))}]}}",
    "threads": "1",
    "trainer.rollout_batch_size": "256",
    "trainer.train_batch_size": "64",
    "trainer.epochs_per_rollout_batch": "1",
    "trainer.micro_batch_size": "64",
    "trainer.sampling.max_tokens": "16",
    "trainer.optimizer.learning_rate": "3e-4",
    "trainer.optimizer.warmup_steps": "4",
    "trainer.kl.coefficient": "0",
    "trainer.kl.track": "false",
    "trainer.eval_every": "10",
    "trainer.eval_samples": "1000",
    "trainer.checkpoint_every": "0",
    "trainer.trace_prompts": "0",
}
OWN: Mapping[str, Mapping[str, str]] = {
    # A critic that knows nothing yet is no baseline: it learns alone first, and faster. No KL, as for the others. Eight
    # completions of a prompt, as for the others: with one of each it sees eight times as many sums and learns more.
    "ppo": {
        "trainer.kl.controller": "fixed",
        "advantage.name": "gae",
        "advantage.critic.learning_rate": "1e-3",
        "advantage.warmup_steps": "3",
        "trainer.group_size": "8",
    },
    # The paper's 3e-4 is for answers of thousands of tokens: the geometric mean over ten moves a hundred times as far.
    "gspo": {"loss.name": "gspo", "loss.clip_range": "0.03", "loss.clip_range_high": "0.04"},
}


class Point(NamedTuple):
    """One held-out evaluation, and training until then."""

    step: int
    seconds: float
    """Of rollout, reward and update so far."""
    accuracy: float
    """Share of right answers to held-out sums, sampled at temperature 1."""
    trained: float
    """The same of the sums trained on, over the steps since the last evaluation (at step 0 the first five steps)."""


def arguments(algorithm: str, seed: int, steps: int, more: Sequence[str] = ()) -> list[str]:
    """What follows ``rlhf train``; ``more`` are further settings, which win."""
    settings = {**SHARED, **OWN.get(algorithm, {}), "trainer.steps": str(steps)}
    pairs = [word for each in (*(f"{k}={v}" for k, v in settings.items()), *more) for word in ("--set", each)]
    return ["--algo", algorithm, "--reward", "verifier", "--seed", str(seed), *pairs]


def complete(run: Path, wanted: Sequence[str]) -> bool:
    """Whether this very run was made to its end."""
    note, summary = run.with_suffix(".json"), run / "summary.json"
    if not note.exists() or not summary.exists() or json.loads(note.read_text()) != list(wanted):
        return False
    return json.loads(summary.read_text())["status"] == "completed"


def train(run: Path, wanted: Sequence[str]) -> None:
    """Make one run unless it is there.

    Raises:
        SystemExit: ``rlhf train`` failed; its own message was shown.
    """
    if complete(run, wanted):
        return
    shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    run.with_suffix(".json").write_text(json.dumps(list(wanted)) + "\n")
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *wanted, "--run-dir", str(run)]
    out = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if out.returncode:
        raise SystemExit(f"{run.name}: rlhf train ended with code {out.returncode}\n{out.stderr[-2000:]}")
    for folder in ("final", "checkpoints"):  # 35 models are not what the study is about
        shutil.rmtree(run / folder, ignore_errors=True)
    print(f"{run.name}: {points(run)[-1].accuracy:.3f}", file=sys.stderr, flush=True)


def points(run: Path) -> list[Point]:
    """Every held-out evaluation of a run."""
    found, seconds, since = list[Point](), 0.0, list[float]()
    rows = list(read_jsonl(run / "metrics.jsonl"))
    first = [r[TRAINED] for r in rows if TRAINED in r][:5]
    for row in rows:
        seconds += sum(row.get("time", {}).values())
        if TRAINED in row:
            since.append(row[TRAINED])
        if ACCURACY in row:
            found.append(Point(row["step"], seconds, row[ACCURACY], mean(since or first)))
            since = []
    return found


def summarise(curves: Mapping[str, Mapping[int, Sequence[Point]]]) -> list[dict[str, Any]]:
    """One row per algorithm: final accuracy over the seeds, its share of the best mean, seconds of training."""
    rows: list[dict[str, Any]] = []
    for name, by_seed in curves.items():
        ends = [p[-1].accuracy for p in by_seed.values()]
        rows.append(
            {
                "algorithm": name,
                "seeds": len(ends),
                "before": mean([p[0].accuracy for p in by_seed.values()]),
                "mean": mean(ends),
                "low": min(ends),
                "high": max(ends),
                "trained_before": mean([p[0].trained for p in by_seed.values()]),
                "trained": mean([p[-1].trained for p in by_seed.values()]),
                "seconds": mean([p[-1].seconds for p in by_seed.values()]),
            }
        )
    best = max(r["mean"] for r in rows)
    return [{**r, "share_of_best": r["mean"] / best if best else 0.0} for r in rows]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The printed table."""
    lines = [
        "| algorithm | seeds | held out, before | after, mean | lowest to highest seed | share of the best "
        "| trained on, before | after | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['algorithm']} | {r['seeds']} | {r['before']:.3f} | {r['mean']:.3f} | {r['low']:.3f} to "
        f"{r['high']:.3f} | {r['share_of_best']:.0%} | {r['trained_before']:.3f} | {r['trained']:.3f} "
        f"| {r['seconds']:.0f} |"
        for r in rows
    ]
    return "\n".join(lines)


def plot(curves: Mapping[str, Mapping[int, Sequence[Point]]], path: Path) -> None:
    """Held-out accuracy by step and by second, and accuracy in training: mean and range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(15, 4.5), constrained_layout=True)
    for name, by_seed in curves.items():
        places = list(zip(*by_seed.values()))
        for panel, (across, up) in zip(panels, (("step", "accuracy"), ("seconds", "accuracy"), ("step", "trained"))):
            along = [mean([getattr(p, across) for p in at]) for at in places]
            values = [[getattr(p, up) for p in at] for at in places]
            low, high = [min(v) for v in values], [max(v) for v in values]
            line = panel.plot(along, [mean(v) for v in values], label=name, linewidth=1.5)[0]
            panel.fill_between(along, low, high, color=line.get_color(), alpha=0.08)
    panels[0].set(xlabel="step", ylabel="held-out accuracy (sampled)")
    panels[1].set(xlabel="seconds of rollout, reward and update", ylabel="held-out accuracy (sampled)")
    panels[2].set(xlabel="step", ylabel="accuracy on the sums trained on (sampled)")
    panels[0].legend()
    figure.savefig(path, dpi=110)


def report(curves: Mapping[str, Mapping[int, Sequence[Point]]], out: Path, steps: int, command: str) -> None:
    """Print the table and write every file."""
    rows = summarise(curves)
    text = table(rows)
    print(text)
    machine = {"cores": os.cpu_count(), "load_average": os.getloadavg(), "versions": library_versions()}
    record = {"command": command, "steps": steps, "shared": SHARED, "own": OWN, "algorithms": rows, "machine": machine}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    out.with_suffix(".md").write_text(f"`{command}`\n\n{text}\n")
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["algorithm", "seed", "step", "seconds", "heldout_accuracy", "trained_accuracy"])
        writer.writerows(
            [name, seed, p.step, f"{p.seconds:.2f}", f"{p.accuracy:.4f}", f"{p.trained:.4f}"]
            for name, by_seed in curves.items()
            for seed, each in by_seed.items()
            for p in each
        )
    plot(curves, out.with_suffix(".png"))


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
    return int(text)


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=positive, default=40)
    parser.add_argument("--jobs", type=positive, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/arithmetic_algorithms"), help="where the runs are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/arithmetic_algorithms"))
    parser.add_argument("--set", dest="more", action="append", default=[], metavar="a.b=c", help="for every run")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    jobs = [
        (name, seed, arguments(name, seed, args.steps, args.more)) for seed in args.seeds for name in args.algorithms
    ]
    if not args.report:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda job: train(args.runs / f"{job[0]}-{job[1]}", job[2]), jobs))
    curves: dict[str, dict[int, list[Point]]] = {}
    for name, seed, wanted in sorted(jobs, key=lambda job: args.algorithms.index(job[0])):
        if complete(args.runs / f"{name}-{seed}", wanted):
            curves.setdefault(name, {})[seed] = points(args.runs / f"{name}-{seed}")
    if not curves:
        raise SystemExit(f"no complete run in {args.runs}: leave out --report")
    words = ["--steps", str(args.steps), "--seeds", *map(str, args.seeds), *(f"--set {each}" for each in args.more)]
    command = " ".join(["python scripts/studies/arithmetic_algorithms.py", *words])
    report(curves, args.out, args.steps, command)


if __name__ == "__main__":
    main()

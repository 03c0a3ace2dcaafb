"""Six mixes of conversational, synthetic and agentic data: what a reward model and an agent make of each.

    OMP_NUM_THREADS=1 python -m scripts.real.data_mixes --runs FOLDER

Another repository publishes, for its own data and one run each, the AUC of a reward model and the accuracy of an agent
by the mix they were trained on (:data:`PUBLISHED`). Here each mix trains both with the same number of rows and three
seeds, through `rlhf train`: a reward model (`reward_model`, on pairs) and an agent (`sft`, on demonstrations).

conversational  `pocket/assistant`: the simulated annotator's choices, with noise and a taste for length
synthetic       candidates about the same facts, chosen by the written rule (right, concise, plain) without noise
agentic         questions of `lookup`: calls and results by the plan, against a beginner's that end in a wrong answer

AUC is on held-out conversational pairs, as published, and besides on held-out agentic ones. The agent's accuracy is on
held-out questions of `lookup` (--suite agentbench_generated: of 70 generated tasks of three categories each, learned
from the oracle's plays of others), one greedy play each. The base models are the embedded ones; how the agent plays
before any training is measured, too.

A run that is there is used again and one that was cut off goes on, so the same command finishes what is missing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import RlhfError
from rlhf_core.data import Prompt
from rlhf_core.data.atomic import write_json
from rlhf_core.rewards import Sample
from rlhf_core.runs import wilson
from rlhf_plugin_agents.commands import compare
from rlhf_plugin_episodes.lookup.demonstrations import TOOLS, demonstration
from rlhf_plugin_episodes.lookup.source import draw_questions
from rlhf_plugin_episodes.lookup.world import world
from rlhf_plugin_pocket import candidate, gold_score, load_pairs, of_split
from rlhf_plugin_reward.config import BradleyTerryConfig
from rlhf_plugin_reward.reward import SingleReward
from rlhf_studies.common.runs import rlhf, train
from scripts.bench.__main__ import commit, machine
from scripts.build_pocket_tools import beginner
from scripts.real._auc import auc_interval
from scripts.real._mix_agents import SUITES

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "bench" / "data_mixes.json"
MIXES: Mapping[str, tuple[int, int, int]] = {
    "pure_conv": (100, 0, 0),
    "conv_synth": (50, 50, 0),
    "conv_agentic": (50, 0, 50),
    "equal_3way": (34, 33, 33),
    "agentic_heavy": (25, 25, 50),
    "pure_agentic": (0, 0, 100),
}
"""Percent conversational, synthetic, agentic."""
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "pure_conv": (0.680, 0.667),
    "conv_synth": (0.700, 0.722),
    "conv_agentic": (0.670, 0.778),
    "equal_3way": (0.710, 0.833),
    "agentic_heavy": (0.690, 0.861),
    "pure_agentic": (0.580, 0.778),
}
"""AUC and accuracy, one run each, on 36 tasks."""
Row = dict[str, Any]


def counts(mix: tuple[int, int, int], rows: int) -> tuple[int, int, int]:
    """Rows of each kind; they sum up to ``rows``.

    Example:
        >>> counts((34, 33, 33), 10)
        (4, 3, 3)
    """
    first = round(rows * mix[0] / 100) if mix[1] or mix[2] else rows
    second = round(rows * mix[1] / 100) if mix[2] else rows - first
    return first, second, rows - first - second


def conversational(count: int, seed: int) -> list[Row]:
    """The annotator's pairs, so many of the training ones."""
    rows = load_pairs("train")
    if count > len(rows):
        raise SystemExit(f"--rows: a mix wants {count} of the annotator's pairs, and there are {len(rows)}")
    random.Random(f"mixes/conversational/{seed}").shuffle(rows)
    return [{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in rows[:count]]


def synthetic(count: int, seed: int) -> list[Row]:
    """Pairs by the written rule: two candidates of different worth about a fact of the training split."""
    rng, pool, rows = random.Random(f"mixes/synthetic/{seed}"), of_split("train"), list[Row]()
    while len(rows) < count:
        fact, question = rng.choice(pool)
        texts = [candidate(fact, rng)[1] for _ in range(2)]
        worth = [gold_score(fact.attribute.name, fact.value, text).value for text in texts]
        if abs(worth[0] - worth[1]) > 1e-6:
            better = int(worth[1] > worth[0])
            rows.append({"prompt": question, "chosen": texts[better], "rejected": texts[1 - better]})
    return rows


@cache
def questions(split: Any) -> Any:
    """Those of `lookup` that plays are of."""
    return draw_questions(0, split, (2, 3, 4, 5, 6), 2000 if split == "train" else 400)


def agentic(count: int, seed: int, split: Any = "train") -> list[Row]:
    """Pairs of whole plays as text: by the plan, against a beginner's whose answer is wrong."""
    rng, people, rows = random.Random(f"mixes/agentic/{split}/{seed}"), world(0, split), list[Row]()
    drawn_questions = questions(split)
    while len(rows) < count:
        _, question = rng.choice(drawn_questions)
        calls, answer = beginner(question, people, rng)
        if answer != question.answer:
            rows.append({"prompt": question.text, "chosen": as_text(question.plan, question.answer),
                         "rejected": as_text(calls, answer)})  # fmt: skip
    return rows


def as_text(calls: Sequence[Any], answer: str) -> str:
    """A play as one text."""
    return "\n".join([*(f"{c.tool}: {c.argument} -> {c.result}" for c in calls), f"The answer is {answer}."])


def demonstrations(count: int, seed: int) -> list[Row]:
    """Plays by the plan, with their tools."""
    known = questions("train")
    chosen = random.Random(f"mixes/demonstrations/{seed}").sample(known, min(count, len(known)))
    return [{"messages": demonstration(q), "tools": list(TOOLS)} for _, q in chosen]


def spoken(rows: Sequence[Row]) -> list[Row]:
    """The better side of pairs, as conversations to imitate."""
    return [
        {"messages": [{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": r["chosen"]}]}
        for r in rows
    ]


def mixed(folder: Path, name: str, seed: int, rows: int, plays: Sequence[Row] | None) -> tuple[Path, Path]:
    """Files of pairs and of demonstrations; ``plays`` are drawn from instead of those of `lookup`."""
    first, second, third = counts(MIXES[name], rows)
    talk, rule = conversational(first, seed), synthetic(second, seed)
    pairs = [*talk, *rule, *agentic(third, seed)]
    shown = demonstrations(third, seed) if plays is None else drawn(plays, third, seed)
    stem = folder / stem_of(name, seed, rows, "lookup" if plays is None else "other")
    files = stem.with_name(f"{stem.name}-pairs.jsonl"), stem.with_name(f"{stem.name}-demonstrations.jsonl")
    for file, content in zip(files, (pairs, [*spoken([*talk, *rule]), *shown])):
        random.Random(f"mixes/order/{seed}").shuffle(content)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return files


def stem_of(name: str, seed: int, rows: int, suite: str) -> str:
    """Names the files and runs of a mix: those of other data are others."""
    return f"{name}-{seed}-{rows}" + ("" if suite == "lookup" else "-other")


def drawn(plays: Sequence[Row], count: int, seed: int) -> list[Row]:
    """So many plays, each as often as the others."""
    rng, found = random.Random(f"mixes/plays/{seed}"), list[Row]()
    while len(found) < count:
        found += rng.sample(list(plays), min(len(plays), count - len(found)))
    return [{k: v for k, v in row.items() if k != "id"} for row in found]


def settings(model: str, file: Path, seed: int, trainer: Mapping[str, Any], epochs: float) -> dict[str, Any]:
    """Of a run."""
    data = {"name": "jsonl", "path": str(file.resolve()), "heldout_fraction": 0.0, "max_dropped_fraction": 1.0}
    common = {"epochs": epochs, "batch_size": 32, "micro_batch_size": 16, "eval_samples": 0, "eval_every": 0,
              "checkpoint_every": 25, "keep_checkpoints": 1}  # fmt: skip
    return {"seed": seed, "model": {"path": model}, "dataset": data, "trainer": {**common, **trainer}}


def pair_scores(model: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """AUC of chosen against rejected with its interval over questions, and the share of pairs in the right order."""
    reward = SingleReward.load(BradleyTerryConfig(path=str(model)), "cpu")
    sides: dict[str, list[float]] = {}
    for side in ("chosen", "rejected"):
        scored = reward.score(
            [Sample(Prompt(str(i), ({"role": "user", "content": r["prompt"]},)), r[side]) for i, r in enumerate(rows)]
        )
        if bad := next((s for s in scored if not s.ok), None):
            raise RlhfError(f"'{model}' has no score of a pair's {side} side", why=bad.detail)
        sides[side] = [s.value for s in scored if s.value is not None]
    groups = [row["prompt"] for row in rows] * 2
    labels = [True] * len(rows) + [False] * len(rows)
    found = auc_interval([*sides["chosen"], *sides["rejected"]], labels, groups, draws=500)
    better = np.array(sides["chosen"]) > np.array(sides["rejected"])
    return {**found, "accuracy": float(better.mean())}


def one(name: str, seed: int, args: argparse.Namespace, plays: Sequence[Row] | None) -> dict[str, Any]:
    """A mix with a seed: both runs, both metrics; kept, and read again."""
    stem = stem_of(name, seed, args.rows, args.suite)
    kept = args.runs / f"{stem}.json"
    decide = ("rows", "suite", "tasks", "model", "reward_model", "epochs", "pairs", "rate")
    asked = {k: v for k, v in vars(args).items() if k in decide}
    if kept.is_file() and (known := json.loads(kept.read_text()))["asked"] == asked:
        return known
    began = time.monotonic()
    pairs, shown = mixed(args.runs, name, seed, args.rows, plays)
    judge = train(args.runs / f"{stem}-reward", settings(
        args.reward_model, pairs, seed, {"name": "reward_model", "optimizer": {"learning_rate": 5e-4}}, args.epochs
    ))  # fmt: skip
    agent = train(args.runs / f"{stem}-agent", settings(
        args.model, shown, seed,
        {"name": "sft", "learn": "all", "optimizer": {"learning_rate": args.rate}}, args.epochs,
    ))  # fmt: skip
    held_out = [{k: r[k] for k in ("prompt", "chosen", "rejected")} for r in load_pairs("heldout")[: args.pairs]]
    found = {
        "asked": asked,
        "counts": counts(MIXES[name], args.rows),
        "auc": pair_scores(judge.final, held_out),
        "agentic_auc": pair_scores(judge.final, agentic(min(200, args.pairs), 0, "heldout")),
        "plays": SUITES[args.suite].play(str(agent.final), args.tasks, args.runs / f"{stem}-plays-{args.tasks}"),
    }
    trained = {"reward": judge.summary["seconds"], "agent": agent.summary["seconds"]}
    found |= {"seconds": trained, "minutes": round((time.monotonic() - began) / 60, 2)}
    write_json(kept, found)
    return found


def start(args: argparse.Namespace) -> dict[str, Any]:
    """The agent before any training."""
    kept, asked = args.runs / "start.json", [args.suite, args.tasks, args.model]
    if not kept.is_file() or json.loads(kept.read_text())["asked"] != asked:
        place = args.runs / f"start-plays-{args.tasks}"
        write_json(kept, {"asked": asked, "plays": SUITES[args.suite].play(args.model, args.tasks, place)})
    return json.loads(kept.read_text())


def accuracy(plays: Sequence[Mapping[str, Any]]) -> float:
    """Share of right answers, of those with a verdict."""
    judged = [p for p in plays if p["value"] is not None]
    if not judged:
        raise RlhfError("no play has a verdict")
    return sum(bool(p["right"]) for p in judged) / len(judged)


def summary(results: Mapping[str, Mapping[str, Mapping[str, Any]]], before: Mapping[str, Any]) -> dict[str, Any]:
    """Means and ranges over seeds, every mix against the conversational one on the same tasks, and the verdicts."""
    table: dict[str, Any] = {}
    for name, seeds in results.items():
        values = [(s["auc"]["auc"], accuracy(s["plays"])) for s in seeds.values()]
        pooled = [p for s in seeds.values() for p in s["plays"] if p["value"] is not None]
        right = sum(bool(p["right"]) for p in pooled) / max(1, len(pooled))
        table[name] = {
            "auc": ends([v[0] for v in values]),
            "agentic_auc": ends([s["agentic_auc"]["auc"] for s in seeds.values()]),
            "accuracy": ends([v[1] for v in values]),
            "accuracy_interval": wilson(right, max(1, len({p["task"] for p in pooled}))),  # seeds share their tasks
            "minutes": ends([s["minutes"] for s in seeds.values()]),
        }
    against = {}
    if "pure_conv" in results:
        first = rows_of(results["pure_conv"])
        against = {n: compare(first, rows_of(s)) for n, s in results.items() if n != "pure_conv"}
    return {"start": {"accuracy": accuracy(before["plays"])}, "mixes": table, "against_pure_conv": against,
            "claims": claims(results)}  # fmt: skip


def rows_of(seeds: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All seeds' plays, seeds as trials of a task."""
    return [{**p, "trial": n} for n, s in enumerate(seeds.values()) for p in s["plays"]]


def ends(values: Sequence[float]) -> dict[str, float]:
    """Mean, lowest and highest."""
    return {"mean": sum(values) / len(values), "low": min(values), "high": max(values)}


def claims(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    """What becomes of what is published about the order of mixes; figures themselves are of other data and models.

    A difference counts where it has the same sign in every seed, of which there must be three.
    """
    others = {lowest: [n for n in MIXES if n != lowest] for lowest in ("pure_agentic", "pure_conv")}
    said = {
        "agentic data alone has the lowest reward AUC": ("auc", "pure_agentic", others["pure_agentic"]),
        "an equal mix has a higher reward AUC than conversation alone": ("auc", "pure_conv", ["equal_3way"]),
        "an equal mix has a higher reward AUC than half and half agentic": ("auc", "conv_agentic", ["equal_3way"]),
        "conversation alone has the lowest agent accuracy": (
            "accuracy", "pure_conv", others["pure_conv"]),
        "agentic-heavy is a better agent than agentic data alone": ("accuracy", "pure_agentic", ["agentic_heavy"]),
        "an equal mix is a better agent than conversation with agentic data": (
            "accuracy", "conv_agentic", ["equal_3way"]),
        "agentic SFT is better than conversational SFT": ("accuracy", "pure_conv", ["pure_agentic"]),
    }  # fmt: skip
    return {claim: called(results, *parts) for claim, parts in said.items()}


def called(
    results: Mapping[str, Mapping[str, Mapping[str, Any]]], metric: str, lower: str, higher: Sequence[str]
) -> str:
    """``reproduced``, ``contradicted`` or ``not resolvable here``, from every seed's difference."""
    if lower not in results or any(n not in results for n in higher):
        return "not run"

    def value(name: str, seed: str) -> float:
        found = results[name][seed]
        return found["auc"]["auc"] if metric == "auc" else accuracy(found["plays"])

    seeds = [s for s in results[lower] if all(s in results[n] for n in higher)]
    if len(seeds) < 3:
        return "not resolvable here: fewer than three seeds"
    signs = {n: {np.sign(value(n, s) - value(lower, s)) for s in seeds} for n in higher}
    if all(found == {1.0} for found in signs.values()):
        return "reproduced"
    if any(found == {-1.0} for found in signs.values()):
        return "contradicted"
    return "not resolvable here"


def show(found: Mapping[str, Any]) -> str:
    """A row per mix, then the claims."""
    lines = [
        "| mix | AUC | published | accuracy | published | agentic AUC | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in found["mixes"].items():
        cells = [f"{row[k]['mean']:.3f} ({row[k]['low']:.3f} to {row[k]['high']:.3f})" for k in
                 ("auc", "accuracy", "agentic_auc", "minutes")]  # fmt: skip
        told = PUBLISHED[name]
        lines.append(f"| {name} | {cells[0]} | {told[0]:.3f} | {cells[1]} | {told[1]:.3f} | {cells[2]} | {cells[3]} |")
    lines += ["", f"before training: {found['start']['accuracy']:.3f}", ""]
    return "\n".join([*lines, *(f"- {claim}: {verdict}" for claim, verdict in found["claims"].items())])


def main() -> None:
    """Run what is missing, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=1000, help="of each kind of training data together")
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of SFT")
    parser.add_argument("--tasks", type=int, default=250, help="held out, for the agent")
    parser.add_argument("--pairs", type=int, default=640, help="held out, for the reward model")
    parser.add_argument("--suite", choices=list(SUITES), default="lookup")
    parser.add_argument("--model", default="pocket-tools", help="the agent before training")
    parser.add_argument("--reward-model", default="pocket", help="the reward model before training")
    parser.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    plays = SUITES[args.suite].demonstrations(args.runs, rlhf)
    before, results = start(args), dict[str, dict[str, Any]]()
    for seed in args.seeds:
        for name in args.mixes:
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
            results.setdefault(name, {})[str(seed)] = one(name, seed, args, plays)
            found = summary(results, before)
            record = {"command": "python -m scripts.real.data_mixes", "date": time.strftime("%Y-%m-%d")}
            facts = {k: v for k, v in vars(args).items() if k not in ("runs", "record")}
            each = {n: {s: {k: v for k, v in f.items() if k != "plays"} for s, f in seeds.items()}
                    for n, seeds in results.items()}  # fmt: skip
            write_json(args.record, {**record, "settings": facts, "commit": commit(), "machine": machine(),
                                     "published": PUBLISHED, **found, "runs": each})  # fmt: skip
            print(show(found), flush=True)


if __name__ == "__main__":
    main()

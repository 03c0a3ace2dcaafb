"""Does a reward model need the whole conversation? The same pairs with every turn, and with the last turn only.

    python scripts/studies/multi_turn.py --seeds 0 1 --out runs/multi_turn

Pocket world. Conversations of two turns: somebody asks for a fact and gets an answer, then asks for the fact again in
other words. The pairs are labelled by the simulated annotator, whose fact is the one *told in the first turn* (drawn at
random, so that memory of the world is no help). Reward models from the same trunk are trained on whole conversations
and on their last turn, and compared on held-out pairs: on all, and on those whose two responses differ in truth alone.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rlhf_core.api import Prompt, Sample
from rlhf_core.functional import win_rate
from rlhf_core.pocket import data
from rlhf_core.pocket.world import Fact, Style, draw_style, facts, render
from rlhf_plugin_reward.config import BradleyTerryConfig
from rlhf_plugin_reward.reward import SingleReward

SIZES = {"train": 4096, "heldout": 512}
CONDITIONS = ("whole conversation", "last turn")


def conversations(split: str) -> list[dict[str, Any]]:
    """Pairs with the annotator's noise: turns, chosen, rejected, and whether only truth tells the two apart."""
    rng, pool = Random(f"multi-turn/{split}"), list(facts())
    rows: list[dict[str, Any]] = []
    while len(rows) < SIZES[split]:
        known = rng.choice(pool)
        fact = Fact(known.person, known.attribute, rng.choice(known.attribute.values))
        first, again = rng.sample(known.attribute.questions, 2)
        alone = rng.random() < 0.5
        a, b = draw_style(rng), draw_style(rng)
        right = rng.random() < 0.5
        styles = [replace(a, right=right), replace(a if alone else b, right=not right)]
        texts = [render(fact, s, rng) for s in styles]
        if texts[0] == texts[1]:
            continue
        gap = data.utility(fact, styles[0], texts[0]) - data.utility(fact, styles[1], texts[1])
        order = 1 if rng.random() < 1 / (1 + math.exp(-gap / data.LABEL_TEMPERATURE)) else -1
        turns = [
            {"role": "user", "content": first.format(p=known.person)},
            {"role": "assistant", "content": render(fact, Style(True, "", "", ()), rng)},
            {"role": "user", "content": again.format(p=known.person)},
        ]
        rows.append({"turns": turns, "chosen": texts[::order][0], "rejected": texts[::order][1], "truth_alone": alone})
    return rows


def seen(row: dict[str, Any], condition: str) -> list[dict[str, str]]:
    """The turns that a condition shows."""
    return row["turns"] if condition == CONDITIONS[0] else row["turns"][-1:]


def write(rows: list[dict[str, Any]], condition: str, file: Path) -> None:
    """A file of whole conversations, as `jsonl` reads them."""
    lines = [
        {side: [*seen(row, condition), {"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}
        for row in rows
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def accuracy(model: Path, rows: list[dict[str, Any]], condition: str) -> dict[str, Any]:
    """Held-out accuracy with 95 % intervals, and tokens per conversation."""
    reward = SingleReward.load(BradleyTerryConfig(path=str(model)), "cpu")

    def scores(side: str) -> list[float]:
        samples = [Sample(Prompt(str(i), tuple(seen(r, condition))), r[side]) for i, r in enumerate(rows)]
        return [float(s.value or 0.0) for s in reward.score(samples)]

    chosen, rejected = scores("chosen"), scores("rejected")
    alone = [i for i, r in enumerate(rows) if r["truth_alone"]]
    every = win_rate(chosen, rejected)
    truth = win_rate([chosen[i] for i in alone], [rejected[i] for i in alone])
    tokens = fmean(len(reward.encoder.encode(tuple(seen(r, condition)), r["chosen"])) for r in rows)
    return {"accuracy": list(every), "truth_alone": list(truth), "tokens": tokens}


def one(seed: int, condition: str, root: Path, held: list[dict[str, Any]]) -> dict[str, Any]:
    """Train (unless it is there) and measure."""
    short = condition.replace(" ", "_")
    folder, file = root / f"seed-{seed}" / short, root / f"{short}.jsonl"
    if not (folder / "summary.json").is_file():
        command = [
            "train",
            "--algo",
            "reward_model",
            "--dataset",
            str(file),
            "--seed",
            str(seed),
            "--run-dir",
            str(folder),
            "--set",
            "threads=1",
            "--set",
            "trainer.batch_size=32",
            "--set",
            "trainer.micro_batch_size=32",
            "--set",
            "trainer.optimizer.learning_rate=5e-4",
        ]
        subprocess.run([sys.executable, "-m", "rlhf_core.cli.main", *command], check=True, stdout=subprocess.DEVNULL)
    seconds = json.loads((folder / "summary.json").read_text())["seconds"]
    return {"seed": seed, "condition": condition, "seconds": seconds, **accuracy(folder / "final", held, condition)}


def main() -> None:
    """Train both conditions for every seed and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("runs/multi_turn"))
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train, held = conversations("train"), conversations("heldout")
    for condition in CONDITIONS:
        write(train, condition, args.out / f"{condition.replace(' ', '_')}.jsonl")
    print("| seed | seen | held-out accuracy | where truth alone differs | tokens | seconds |")
    print("|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        for condition in CONDITIONS:
            rows.append(one(seed, condition, args.out, held))
            if args.record:
                args.record.write_text(json.dumps(rows) + "\n")
            cells = [f"{v[0]:.3f} ({v[1]:.3f} to {v[2]:.3f})" for v in (rows[-1]["accuracy"], rows[-1]["truth_alone"])]
            print(
                f"| {seed} | {condition} | {cells[0]} | {cells[1]} | {rows[-1]['tokens']:.1f} | "
                f"{rows[-1]['seconds']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

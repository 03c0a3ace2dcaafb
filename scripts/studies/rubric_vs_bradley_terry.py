"""Grades on a rubric or preferences between pairs: which reward model is right more often, and which is easier to fool?

    python scripts/studies/rubric_vs_bradley_terry.py --seeds 0 1 2 --out runs/rubric --record FILE.json

Pocket world. The same 4096 answers are judged twice: as pairs, by the annotator of the shipped pairs (noisy, pleased by
length), and one by one, by a judge who grades three criteria from 1 to 5 (right, plain, concise) and errs: it takes
right for wrong or wrong for right in one answer of ten, and is off by one in three of ten grades of style. Two reward
models learn from them, from the same trunk, with the same rate and number of updates, each update on 64 answers. Both
are tested by ``rlhf reward evaluate`` on held-out pairs and on the untrained policy's own answers, and GRPO trains with
each (not with ``--steps 0``). Finished runs in --out are used again; their options are part of their names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from rlhf_core.api import ModelConfig, Prompt, SamplingParams
from rlhf_core.cli.generate import sample
from rlhf_core.models.load import load_policy
from rlhf_core.pocket.data import load_pairs, of_split, questions
from rlhf_core.pocket.gold import WEIGHTS, gold_score
from rlhf_core.pocket.world import Fact
from rlhf_core.runs.jsonl import read_jsonl

PAIRS, PROMPTS, ANSWERS = 2048, 60, 8
WRONG_VERDICT, OFF_BY_ONE = 0.1, 0.3
QUESTIONS = {"right": "Is what it says true?", "plain": "Is it free of hollow affirmations?", "concise": "Is it short?"}
RUBRIC = [{"name": name, "question": question, "weight": WEIGHTS[name]} for name, question in QUESTIONS.items()]
KINDS = {"preferences": "reward_model", "grades": "rubric_model"}
"""What is learned from -> trainer."""
REWARDS = {"preferences": "bradley_terry", "grades": "rubric_model"}
EVALS = {"gold": "value", "right": "right", "hollow": "hollow", "words": "words"}


def rlhf(*arguments: object) -> None:
    """Run the command.

    Raises:
        CalledProcessError: it failed; its own message was shown.
    """
    command = [sys.executable, "-m", "rlhf_core.cli.main", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def sets(*settings: str) -> list[str]:
    """``--set`` before each."""
    return [word for text in settings for word in ("--set", text)]


def grades(fact: Fact, text: str, rng: Random) -> dict[str, int]:
    """What the erring judge says of an answer."""
    gold = gold_score(fact.attribute.name, fact.value, text)
    right = 5 if (gold.right > 0) != (rng.random() < WRONG_VERDICT) else 1

    def near(value: float) -> int:
        off = rng.choice((-1, 1)) if rng.random() < OFF_BY_ONE else 0
        return min(5, max(1, round(1 + 4 * value) + off))

    return {"right": right, "plain": near(gold.plain), "concise": near(gold.concise)}


def write_data(folder: Path, seed: int) -> None:
    """The same answers as pairs and with grades."""
    rng, facts = Random(f"judge/{seed}"), {question: fact for fact, question, _ in questions()}
    pairs = Random(f"pairs/{seed}").sample(load_pairs("train"), PAIRS)
    graded = [
        {
            "id": f"{pair['id']}/{side}",
            "prompt": pair["prompt"],
            "completion": pair[side],
            "grades": grades(facts[pair["prompt"]], pair[side], rng),
        }
        for pair in pairs
        for side in ("chosen", "rejected")
    ]
    for name, rows in (("preferences", pairs), ("grades", graded)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rubric.yaml").write_text(json.dumps(RUBRIC))


def write_answers(file: Path, seed: int) -> None:
    """Answers of the untrained policy to unseen questions, with their gold score."""
    facts = of_split("heldout")[:PROMPTS]
    prompts = [Prompt(f"p/{i}", ({"role": "user", "content": question},)) for i, (_, question) in enumerate(facts)]
    rollouts = sample(load_policy(ModelConfig()), prompts, SamplingParams(max_tokens=48), ANSWERS, seed, "auto")
    rows = [
        {
            "id": f"p/{i}/{k}",
            "prompt": question,
            "completion": text,
            "gold": gold_score(fact.attribute.name, fact.value, text).value,
        }
        for i, (fact, question) in enumerate(facts)
        for k in range(ANSWERS)
        for text in (rollouts[i * ANSWERS + k].text,)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def reward_model(kind: str, folder: Path, seed: int) -> Path:
    """Train it unless it is there: 64 updates of 64 answers an epoch."""
    run = folder / kind
    if not (run / "final").is_dir():
        own = (
            ("trainer.batch_size=64", f"trainer.rubric={folder / 'rubric.yaml'}")
            if kind == "grades"
            else ("trainer.batch_size=32",)
        )
        rlhf(
            "train",
            "--algo",
            KINDS[kind],
            "--dataset",
            folder / f"{kind}.jsonl",
            "--seed",
            seed,
            "--run-dir",
            run,
            *sets(
                "threads=1",
                "dataset.heldout_fraction=0",
                "trainer.micro_batch_size=32",
                "trainer.epochs=2",
                "trainer.eval_samples=0",
                "trainer.optimizer.learning_rate=5e-4",
                "trainer.checkpoint_every=0",
                *own,
            ),
        )
    return run / "final"


def evaluated(models: dict[str, Path], folder: Path) -> dict[str, dict[str, Any]]:
    """What ``rlhf reward evaluate`` says of each."""
    output = folder / "evaluation.json"
    if not output.is_file():
        chosen = [word for kind in KINDS for word in ("--reward", REWARDS[kind])]
        rlhf(
            "reward",
            "evaluate",
            *chosen,
            *sets(*(f"{REWARDS[k]}:path={m}" for k, m in models.items())),
            "--pairs",
            "pocket/assistant",
            "--responses",
            folder / "answers.jsonl",
            "--gold",
            "gold",
            "--probe",
            "length",
            "--probe",
            "hollow",
            "--output",
            output,
        )
    found = json.loads(output.read_text())["rewards"]
    return {kind: next(v for name, v in found.items() if REWARDS[kind] in name) for kind in KINDS}


def policy(kind: str, model: Path, folder: Path, seed: int, steps: int) -> dict[str, float]:
    """Train with one of them; the held-out gold score before and after."""
    run = folder / f"grpo-{kind}-{steps}"
    if not (run / "final").is_dir():
        rlhf(
            "train",
            "--algo",
            "grpo",
            "--reward",
            REWARDS[kind],
            "--seed",
            seed,
            "--run-dir",
            run,
            *sets(
                f"reward.path={model}",
                "threads=1",
                f"trainer.steps={steps}",
                "trainer.eval_samples=200",
                "trainer.kl.coefficient=0",
                "trainer.checkpoint_every=0",
            ),
        )
    rows = [r for r in read_jsonl(run / "metrics.jsonl") if "eval/gold/value" in r]
    return {
        f"{name}_{when}": row[f"eval/gold/{key}"]
        for when, row in (("before", rows[0]), ("after", rows[-1]))
        for name, key in EVALS.items()
    }


def one_seed(seed: int, root: Path, steps: int) -> list[dict[str, Any]]:
    """Both kinds, trained, tested and trained with."""
    folder = root / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "answers.jsonl").is_file():
        write_data(folder, seed)
        write_answers(folder / "answers.jsonl", seed)
    models = {kind: reward_model(kind, folder, seed) for kind in KINDS}
    tested = evaluated(models, folder)
    return [
        {
            "seed": seed,
            "learned_from": kind,
            "tested": summary(tested[kind]),
            "policy": policy(kind, models[kind], folder, seed, steps) if steps else None,
        }
        for kind in KINDS
    ]


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of the table, from the evaluation's JSON."""
    return {
        "agrees with labels": found["accuracy"],
        "rank correlation with gold": found["gold"]["spearman"],
        "gold of the best of 8": found["best_of_n"][-1]["gold"],
        "two neutral sentences appended": found["probes"]["length"]["2 sentences"]["change"],
        "hollow phrases in front": fmean(v["change"] for v in found["probes"]["hollow"].values()),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds (lowest to highest)."""
    tested = list(rows[0]["tested"])
    trained = [f"{name}_{when}" for name in EVALS for when in ("before", "after")] if rows[0]["policy"] else []
    lines = ["| | " + " | ".join(KINDS) + " |", "|---|" + "---|" * len(KINDS)]
    for part, keys in (("tested", tested), ("policy", trained)):
        for key in keys:
            cells = [[r[part][key] for r in rows if r["learned_from"] == kind] for kind in KINDS]
            lines.append(
                f"| {key.replace('_', ' ')} | "
                + " | ".join(f"{fmean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in cells)
                + " |"
            )
    return "\n".join(lines)


def main() -> None:
    """Every seed, then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=14, help="of GRPO with each reward model; 0: none")
    parser.add_argument("--out", type=Path, default=Path("runs/rubric"))
    parser.add_argument("--record", type=Path, help="write every figure here")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        rows += one_seed(seed, args.out, args.steps)
        if args.record:
            args.record.write_text(json.dumps({"pairs": PAIRS, "steps": args.steps, "runs": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()

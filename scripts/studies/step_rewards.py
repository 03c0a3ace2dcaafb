"""Credit for each step against credit for the whole: GRPO in the pocket world with a process reward model.

    python scripts/studies/step_rewards.py [--seeds 0 1 2] [--steps 10] [--out docs/studies/step_rewards]

The steps are sentences of the assistant's answers, labelled wrong if they are hollow ("Absolutely!"). For each seed a
process reward model learns that from the world's preference texts, and GRPO trains the built-in model with it: one
advantage per completion from the lowest step, or one per step. Gold, which none of them sees, counts hollow answers,
right ones and words. Writes OUT.json and OUT.md; ``--runs`` keeps runs, and uses those of the same options.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ARMS: Mapping[str, Sequence[str]] = {
    "lowest step, one advantage per completion": (),
    "a step's own reward": ("advantage.name=step", "advantage.credit=own"),
    "own and later steps (sum)": ("advantage.name=step", "advantage.credit=sum"),
    "own and later steps (min)": ("advantage.name=step", "advantage.credit=min"),
}
GOLD = ("value", "hollow", "right", "words")
TEXTS = 1500


def write_rows(file: Path) -> None:
    """Both sides of the preference pairs as sentences with labels."""
    from rlhf_core.pocket.data import load_pairs
    from rlhf_core.pocket.gold import is_hollow
    from rlhf_plugin_prm.steps import split_steps

    with file.open("w") as out:
        for pair in load_pairs("train")[: TEXTS // 2]:
            for side in ("chosen", "rejected"):
                steps = [pair[side][s.start : s.end] for s in split_steps(pair[side], "sentence")]
                row = {
                    "id": f"{pair['id']}-{side}",
                    "prompt": pair["prompt"],
                    "completion": pair[side],
                    "labels": [not is_hollow(s) for s in steps],
                }
                out.write(json.dumps(row) + "\n")


def train(run: Path, seed: int, options: Sequence[str], sets: Sequence[str]) -> dict[str, Any]:
    """Run one training through the command line, unless it is there, and return its summary."""
    if not (run / "summary.json").exists():
        every = ["trainer.checkpoint_every=0", "trainer.eval_every=0", "threads=1", *sets]
        command = [
            sys.executable,
            "-m",
            "rlhf_core.cli.main",
            "train",
            *options,
            "--seed",
            str(seed),
            "--run-dir",
            str(run),
            *(x for s in every for x in ("--set", s)),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((run / "summary.json").read_text())


def compare(seed: int, steps: int, wanted: Sequence[int], root: Path) -> dict[str, Any]:
    """The wanted arms against one process model."""
    rows, prm = root / "sentences.jsonl", root / f"prm-{seed}"
    root.mkdir(parents=True, exist_ok=True)
    write_rows(rows)
    learned = train(
        prm,
        seed,
        ("--algo", "prm", "--dataset", str(rows)),
        (
            "trainer.split=sentence",
            "trainer.batch_size=32",
            "trainer.micro_batch_size=32",
            "trainer.eval_samples=100",
            "trainer.optimizer.learning_rate=3e-4",
        ),
    )
    arms: dict[str, Any] = {}
    for n, (name, sets) in ((n, list(ARMS.items())[n]) for n in wanted):
        found = train(
            root / f"arm-{seed}-{n}-steps-{steps}",
            seed,
            ("--algo", "grpo", "--dataset", "pocket/assistant", "--reward", "prm"),
            (
                f"reward.path={prm / 'final'}",
                f"trainer.steps={steps}",
                "trainer.eval_samples=100",
                "trainer.gold_samples=100",
                *sets,
            ),
        )
        arms[name] = {
            when: {g: found[f"evaluation_{when}"][f"eval/gold/{g}"] for g in GOLD} for when in ("before", "after")
        }
        arms[name] |= {"seconds": found["seconds"], "kl_last": found["kl_last"]}
    return {"seed": seed, "process_model": learned["evaluation_after"], "arms": arms}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Gold before and after, mean over seeds (lowest to highest)."""
    lines = ["| trained on | gold | hollow | right | words |", "|---|---|---|---|---|"]
    arms = list(results[0]["arms"])
    for label, name, when in [("nothing yet", arms[0], "before"), *((n, n, "after") for n in arms)]:
        cells: list[str] = []
        for measure in GOLD:
            values = [r["arms"][name][when][measure] for r in results]
            spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{sum(values) / len(values):.2f}{spread}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--arms", type=int, nargs="+", choices=range(len(ARMS)), default=list(range(len(ARMS))))
    parser.add_argument("--runs", type=Path, help="folder for the runs; default a temporary one")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/step_rewards"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(seed, args.steps, args.arms, args.runs or Path(folder)) for seed in args.seeds]
    text = table(results)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"steps": args.steps, "texts": TEXTS, "cores": os.cpu_count(), "results": results}
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    said = f"`python scripts/studies/step_rewards.py --steps {args.steps} --seeds {' '.join(map(str, args.seeds))}"
    said += f" --arms {' '.join(map(str, args.arms))}`" if len(args.arms) < len(ARMS) else "`"
    args.out.with_suffix(".md").write_text(f"{said}\n\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()

"""Which method makes the better assistant? SFT, reward models, then PPO, DPO, iterative DPO and GRPO (pocket world).

    python scripts/studies/pocket_methods.py --seeds 0 1 2 --out runs/pocket_methods

Every method starts from the same fine-tuned policy, with its own recipe for the pocket model. The reward models (an
ensemble, trained once per seed from the fine-tuned policy on the pairs that DPO learns from) are the proxy: PPO, GRPO
and iterative DPO are trained against them, DPO and SFT are only measured by them. The gold score is seen by nobody.
What is done is kept in --out, seed by seed and method by method; --record writes all figures of the seeds asked for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.registry import Registry

REWARD = {
    "name": "dpo",
    "max_steps": 1,
    "batch_size": 2,
    "micro_batch_size": 2,
    "sample_prompts": 200,
    "sampling": {"max_tokens": 48},
    "optimizer": {"learning_rate": 1e-12, "warmup_steps": 0},
}
"""A run that learns nothing: it trains the reward models, and measures the fine-tuned policy by them."""
METHODS = ("ppo", "dpo", "iterative_dpo", "grpo")
SFT = {
    "name": "sft",
    "max_steps": 12,
    "batch_size": 32,
    "micro_batch_size": 32,
    "sample_prompts": 200,
    "eval_every": 0,
    "sampling": {"max_tokens": 48},
    "optimizer": {"learning_rate": 1e-4, "warmup_steps": 2},
}
"""Short on purpose: demonstrations until the policy is perfect would leave nothing to prefer."""
COLUMNS = (
    ("win rate over the SFT policy", "gold_win_rate"),
    ("gold", "gold"),
    ("right", "right"),
    ("proxy reward", "reward"),
    ("KL", "kl"),
    ("hollow", "hollow"),
    ("tokens", "length"),
    ("seconds", "seconds"),
)


def train(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One run with this configuration, or the summary of the run that is already there."""
    if not (folder / "summary.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        begun = (
            ["--resume", str(folder)]
            if (folder / "plan.json").is_file()
            else ["--config", str(file), "--run-dir", str(folder)]
        )
        subprocess.run(
            [sys.executable, "-m", "rlhf_core.cli.main", "train", *begun], check=True, stdout=subprocess.DEVNULL
        )
    return json.loads((folder / "summary.json").read_text())


def figures(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """The table's columns. KL is k3 in nats per token from where the run started: of the held-out samples after DPO
    and SFT, of the last rollouts of the others."""
    after = summary["evaluation_after"]
    return {
        "gold_win_rate": summary["gold_win_rate"],
        "gold": after["eval/gold/value"],
        "right": after["eval/gold/right"],
        "reward": after.get("eval/reward/mean"),
        "kl": after.get("eval/kl", summary.get("kl_last")),
        "hollow": after["eval/gold/hollow"],
        "length": after["eval/completion_length/mean"],
        "seconds": summary["seconds"],
    }


def recipe(method: str) -> dict[str, Any]:
    """The trainer's own settings for the pocket model, and those of its companions."""
    found = Registry(disabled=()).load("trainer", method).recipes["pocket"]  # pyright: ignore
    return {slot: {**value, **({"name": method} if slot == "trainer" else {})} for slot, value in found.items()}


def one_seed(seed: int, root: Path, methods: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Every method's figures."""
    common = {"seed": seed, "dataset": "pocket/assistant", "threads": 1}
    base = root / f"seed-{seed}"
    own = {**common, "model": {"path": str(base / "sft" / "final")}, "reward": {"name": "ensemble"}}
    found = {"sft": figures(train({**common, "trainer": SFT}, base / "sft"))}
    reward = train({**own, "trainer": REWARD}, base / "reward")
    found["sft"] |= {
        "reward": reward["evaluation_before"]["eval/reward/mean"],
        "reward_seconds": reward["seconds"],
        "reward_accuracy": reward["reports"]["ensemble"]["heldout"]["ensemble"]["accuracy"],
    }
    report("sft", seed, found["sft"])
    for method in methods:
        found[method] = figures(train(merged(own, recipe(method)), base / method))
        report(method, seed, found[method])
    return found


def merged(config: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's slots over the common ones."""
    return {**config, **{k: {**(config.get(k) or {}), **v} if isinstance(v, dict) else v for k, v in extra.items()}}


def report(method: str, seed: int, row: Mapping[str, float | None]) -> None:
    """One line while the study goes on."""
    print(
        f"seed {seed}, {method}: " + ", ".join(f"{name} {spread([row[key]])}" for name, key in COLUMNS),
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    """Run every method for every seed; print a table of means, with the range over seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--out", type=Path, default=Path("runs/pocket_methods"), help="kept; finished runs are reused")
    parser.add_argument("--record", type=Path, help="also write the figures here")
    args = parser.parse_args()
    results = {seed: one_seed(seed, args.out, args.methods) for seed in args.seeds}
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    for file in (args.out / "results.json", *([args.record] if args.record else [])):
        file.write_text(text)
    print(f"seeds: {', '.join(map(str, args.seeds))}\n\n| method | " + " | ".join(name for name, _ in COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    for method in ("sft", *args.methods):
        cells = [spread([results[seed][method][key] for seed in args.seeds]) for _, key in COLUMNS]
        note = " (over the pocket model)" if method == "sft" else ""
        print(f"| {method} | {cells[0]}{note} | " + " | ".join(cells[1:]) + " |")


def spread(values: Sequence[float | None]) -> str:
    """Mean, and the range if there are several; "-" where one is missing."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return "-"
    mean = f"{statistics.fmean(known):.3f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.3f} to {max(known):.3f})"


if __name__ == "__main__":
    main()

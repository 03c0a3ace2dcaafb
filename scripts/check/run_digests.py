"""Do the same seeds still give the same numbers? Trains every algorithm shortly and compares digests bit by bit.

    python -m scripts.check.run_digests --out FOLDER --record docs/bench/run_digests.json   # with the code as it was
    python -m scripts.check.run_digests --out OTHER --compare docs/bench/run_digests.json   # with the code as it is

A digest covers ``metrics.jsonl`` and ``summary.json`` without their times, and the final weights. It belongs to one
machine: processors and versions of torch round differently, so that record and comparison are made on the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Settings = Mapping[str, object]


def case(algo: str, *options: str, settings: Settings) -> tuple[str, ...]:
    """Arguments of ``rlhf train`` after ``--algo``."""
    return (algo, *options, *(word for key, value in settings.items() for word in ("--set", f"trainer.{key}={value}")))


ENSEMBLE = ("--reward", "ensemble")
VERIFIER = ("--reward", "verifier", "--dataset", "pocket/arithmetic")
EVALUATION: Settings = {"eval_samples": 24, "checkpoint_every": 2}
ONLINE: Settings = {"steps": 4, "eval_every": 2, "gold_samples": 24, **EVALUATION}
OFFLINE: Settings = {"max_steps": 4, "eval_every": 2, **EVALUATION}
SEVERAL_UPDATES: Settings = {
    "train_batch_size": 32,
    "epochs_per_rollout_batch": 2,
    "entropy_quantile": 0.5,
    "entropy_coefficient": 0.001,
    "kl.where": "reward",
    "kl.estimator": "k1",
    "kl.sync_every": 2,
}
DAPO: Settings = {**ONLINE, "rollout_batch_size": 32}
ITERATIVE: Settings = {"steps": 2, "gold_samples": 24, **EVALUATION}
CASES: Mapping[str, tuple[str, ...]] = {
    "grpo_default": case("grpo", *ENSEMBLE, settings={}),
    "grpo": case("grpo", *ENSEMBLE, settings=ONLINE),
    "grpo_ahead": case("grpo", *ENSEMBLE, settings={**ONLINE, "rollouts.max_staleness": 1}),
    "grpo_verifier": case("grpo", *VERIFIER, settings={**ONLINE, "micro_batch_tokens": 1024}),
    "grpo_several_updates": case("grpo", *ENSEMBLE, settings={**ONLINE, **SEVERAL_UPDATES}),
    "ppo": case("ppo", *ENSEMBLE, settings=ONLINE),
    "dapo": case("dapo", *VERIFIER, settings=DAPO),
    "dapo_ahead": case("dapo", *VERIFIER, settings={**DAPO, "rollouts.max_staleness": 4}),
    "iterative_dpo": case("iterative_dpo", *ENSEMBLE, settings=ITERATIVE),
    "dpo": case("dpo", settings=OFFLINE),
    "sft": case("sft", settings=OFFLINE),
    "reward_model": case("reward_model", settings=OFFLINE),
    "prm": case("prm", settings=OFFLINE),
}


def main() -> int:
    """Run the cases, then record or compare; exit code 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs; those that are there are kept")
    parser.add_argument("--record", type=Path, help="write the digests here")
    parser.add_argument("--compare", type=Path, help="compare the digests with these")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    digests = {name: digest_of(run_case(name, args.out.resolve())) for name in args.only}
    if args.record:
        args.record.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
    differing = compare(digests, json.loads(args.compare.read_text())) if args.compare else []
    print(*(differing or [f"{len(digests)} runs, all equal" if args.compare else f"{len(digests)} runs"]), sep="\n")
    return 1 if differing else 0


def run_case(name: str, out: Path) -> Path:
    """Train one case into ``out``; return its folder."""
    folder = out / name
    if (folder / "summary.json").is_file():
        return folder
    out.mkdir(parents=True, exist_ok=True)
    algo, *options = CASES[name]
    arguments = ["--algo", algo, *options, "--set", "threads=1", "--run-dir", str(folder)]
    environment = {**os.environ, "RLHF_CACHE": str(out / "cache")}
    print(f"{name}: rlhf train {' '.join(arguments)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *arguments, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-4000:]}")
    return folder


def digest_of(folder: Path) -> dict[str, str]:
    """Digests of a finished run's metrics, summary and weights."""
    rows = [canonical(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = canonical(json.loads((folder / "summary.json").read_text()))
    return {"metrics": sha(rows), "summary": sha(summary), "weights": weights_digest(folder / "final")}


def canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        content = {k: v for k, v in value.items() if k not in ("time", "conditions", "digest") and "seconds" not in k}
        return {k: canonical(v) for k, v in content.items()}
    return [canonical(v) for v in value] if isinstance(value, list) else value


def sha(value: Any) -> str:
    """Content hash of JSON values (16 hex digits)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def weights_digest(folder: Path) -> str:
    """Content hash of every tensor below a folder, by file and name (16 hex digits)."""
    import torch
    from safetensors import safe_open

    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(str(file), "pt") as tensors:
            for name in sorted(tensors.keys()):
                tensor = tensors.get_tensor(name)
                digest.update(f"{file.relative_to(folder)} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def compare(now: Mapping[str, Mapping[str, str]], then: Mapping[str, Mapping[str, str]]) -> list[str]:
    missing = [f"{name}: not recorded" for name in now if name not in then]
    return missing + [
        f"{name}: {what} {then[name][what]} -> {value}"
        for name, row in now.items()
        if name in then
        for what, value in row.items()
        if then[name][what] != value
    ]


if __name__ == "__main__":
    sys.exit(main())

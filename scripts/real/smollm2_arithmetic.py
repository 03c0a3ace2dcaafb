"""Does a real model learn a checkable task? SmolLM2-135M-Instruct, two-digit sums, GRPO, nothing but a verifier.

Trains ``configs/smollm2_arithmetic.yaml`` through the public command line and asks the model before and after the same
held-out sums, greedily and sampled. Prints accuracy with 95 % intervals, the difference, and what it took.

    python -m scripts.real.smollm2_arithmetic --model SmolLM2-135M-Instruct.gguf

``--model`` is a hub id, folder or .gguf file (default: $RLHF_SMOLLM2_GGUF, else the hub's). With ``--run`` the run is
kept, and gone on with or used as it is the next time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.functional import wilson
from rlhf_core.runs.jsonl import read_jsonl
from scripts.bench.__main__ import commit, machine
from scripts.real.smollm2_gsm8k import ROOT, child_seconds

CONFIG = ROOT / "configs" / "smollm2_arithmetic.yaml"
Z = 1.959964


def main() -> None:
    """Train, measure, print, record."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real.smollm2_arithmetic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=os.environ.get("RLHF_SMOLLM2_GGUF"))
    parser.add_argument("--sums", type=int, default=256, help="held-out sums to ask")
    parser.add_argument("--run", type=Path, help="the run's folder; default a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "studies" / "smollm2_arithmetic.json")
    parser.add_argument("--note", default="", help="what else the machine was doing, for the record")
    args = parser.parse_args()
    if args.sums < 2:
        parser.error("--sums must be at least 2")
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or Path(folder) / "run"
        cost = train(run, args.model)
        before, after = right(args.model, args.model, args.sums), right(args.model, str(run / "final"), args.sums)
        training = {**figures(run), **cost}
    record = {
        "command": "python -m scripts.real.smollm2_arithmetic",
        "config": "configs/smollm2_arithmetic.yaml",
        "heldout_sums": args.sums,
        **{how: compare(before[how], after[how]) for how in before},
        "training": training,
        "commit": commit(),
        "machine": {
            **machine(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "load_average": os.getloadavg(),
            "note": args.note,
        },
    }
    print(json.dumps(record, indent=1))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def train(run: Path, model: str | None) -> dict[str, float]:
    """Make the run, or go on with it; wall and processor seconds of what had to be done here.

    Raises:
        SystemExit: ``rlhf train`` failed; its own message was shown.
    """
    if (run / "summary.json").exists() and (run / "final").is_dir():
        return {}
    new = ["--config", str(CONFIG), "--run-dir", str(run), *(["--model", model] if model else [])]
    start, cpu = time.perf_counter(), child_seconds()
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *(["--resume", str(run)] if run.exists() else new)]
    if code := subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f"rlhf train ended with code {code}")
    return {"seconds_total": round(time.perf_counter() - start, 1), "cpu_seconds": round(child_seconds() - cpu, 1)}


def figures(run: Path) -> dict[str, Any]:
    """What the run's own files say of it; ``seconds`` has loading and held-out evaluations too."""
    rows = list(read_jsonl(run / "metrics.jsonl"))
    steps = [row for row in rows if "time" in row]
    plan, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("plan", "summary"))
    trainer = plan["config"]["trainer"]
    return {
        "steps": len(steps),
        "completions": len(steps) * trainer["rollout_batch_size"],
        "learning_rate": trainer["optimizer"]["learning_rate"],
        "seconds": summary["seconds"],
        "seconds_of_steps": round(sum(sum(s["time"].values()) for s in steps), 1),
        "reward_by_step": [round(s["reward/mean"], 3) for s in steps],
        "heldout_by_step": {str(r["step"]): round(r["eval/reward/mean"], 3) for r in rows if "eval/reward/mean" in r},
    }


def right(configured: str | None, model: str | None, count: int) -> dict[str, list[bool]]:
    """Which held-out sums a model gets right, greedily and sampled at temperature 1.

    Args:
        configured: the model that the configuration is to name, None for its own.
        model: whom to ask, None for the configuration's.
        count: how many of the held-out sums, from the first.
    """
    from rlhf_core.cli.generate import sample
    from rlhf_core.config.load import resolve
    from rlhf_core.context import BuildContext
    from rlhf_core.data.datasets import Datasets
    from rlhf_core.kernels.matmul import use_products
    from rlhf_core.models.load import load_policy
    from rlhf_core.registry import Registry
    from rlhf_core.verifiers.numeric import stated_number

    registry = Registry(disabled=())
    config = resolve(registry, files=[CONFIG], settings=[f"model.path={configured}"] if configured else [])
    use_products(config.matmul)
    datasets = Datasets(config.dataset, BuildContext(config=config, registry=registry, seed=config.seed))
    prompts = datasets.prompts("heldout")[:count]
    policy = load_policy(config.model.model_copy(update={"path": model} if model else {}))
    found: dict[str, list[bool]] = {}
    for how, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        params = config.trainer.sampling.params(temperature=temperature)
        said = [stated_number(r.text) for r in sample(policy, prompts, params, 1, config.seed, "raw")]
        found[how] = [s is not None and s.value == int(str(p.answer)) for s, p in zip(said, prompts)]
    return found


def compare(before: Sequence[bool], after: Sequence[bool]) -> Mapping[str, Any]:
    """Accuracies with Wilson intervals, and the difference with the interval of paired samples, all at 95 %."""
    change = [int(b) - int(a) for a, b in zip(before, after)]
    n, gain = len(change), sum(change) / len(change)
    half = Z * math.sqrt(sum((c - gain) ** 2 for c in change) / (n - 1) / n)
    return {
        "before": share(before),
        "after": share(after),
        "gain": {"points": round(100 * gain, 1), "interval": [round(100 * (gain + s * half), 1) for s in (-1, 1)]},
    }


def share(hits: Sequence[bool]) -> Mapping[str, Any]:
    """Share of hits and its Wilson interval."""
    rate = sum(hits) / len(hits)
    return {"accuracy": round(rate, 3), "interval": [round(bound, 3) for bound in wilson(rate, len(hits), Z)]}


if __name__ == "__main__":
    main()

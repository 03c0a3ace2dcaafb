"""One whole GRPO step (rollout, reward, advantage, update), ours against TRL's GRPOTrainer on the same work.

    python -m scripts.bench.grpo_step --model SmolLM2-135M-Instruct.Q4_1.gguf --runs 5 --json

4 prompts of about 40 tokens x 8 completions of exactly 64 tokens, micro-batches of 8, float32, no KL term, AdamW.
Both sides live in their own process at the same time and take turns: while one makes a step the other waits for its
turn, and the order is swapped in every round, so whatever else the machine does meets both. Ours is ``rlhf train``
itself (``_grpo_ours.py``); TRL's settings are in ``_grpo_trl.py``. Each side's first step is a warm-up and not counted.

``cpu_seconds`` is the processor time of all threads: with ``--threads 1`` it hardly depends on what else is running.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from scripts.bench._grpo_work import GROUP, MICRO_BATCH, NEW_TOKENS, PROMPTS

ROOT = Path(__file__).parents[2]
SIDES = {"ours": "scripts.bench._grpo_ours", "trl": "scripts.bench._grpo_trl"}


class Side:
    """One of the two processes."""

    def __init__(self, name: str, model: Path, folder: Path, steps: int, threads: int) -> None:
        self.name = name
        folder.mkdir()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
                       "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.log = (folder / "log.txt").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", SIDES[name], str(model), str(folder), str(steps)], cwd=ROOT, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.steps: list[dict[str, Any]] = []
        self.wait()

    def wait(self) -> dict[str, Any]:
        """Wait for the step in progress. The first answer is the warm-up."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"{self.name} ended early:\n{self.log.read()[-4000:]}")
        return json.loads(line)

    def step(self) -> None:
        """Make one step and keep its figures."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(self.wait())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def figures(self) -> dict[str, Any]:
        """Medians over the counted steps."""
        seconds = [s["seconds"] for s in self.steps]
        parts = {k: round(statistics.median(s["parts"][k] for s in self.steps), 2) for k in self.steps[0]["parts"]}
        parts["other" if self.name == "ours" else "update"] = round(statistics.median(
            s["seconds"] - sum(s["parts"].values()) for s in self.steps), 2)
        cpu = [s["cpu_seconds"] for s in self.steps]
        return {"median_seconds": round(statistics.median(seconds), 2), "seconds": [round(s, 2) for s in seconds],
                "median_cpu_seconds": round(statistics.median(cpu), 2),
                "parts_median_seconds": parts, "peak_rss_mb": round(max(s["peak_rss_mb"] for s in self.steps)),
                "tokens_generated": sorted({s["tokens_generated"] for s in self.steps}),
                "tokens_trained": sorted({s["tokens_trained"] for s in self.steps})}


def as_folder(model: Path, scratch: Path) -> Path:
    """Both sides read the same safetensors folder; a ``.gguf`` file is converted once."""
    if model.is_dir():
        return model.resolve()
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_policy
    from rlhf_core.models.save import write_folder

    loaded = load_policy(ModelConfig(path=str(model)))
    write_folder(loaded.model, loaded.tokenizer, scratch / "model")
    return scratch / "model"


def measure(model: Path, runs: int, threads: int = 2) -> dict[str, Any]:
    """Alternate ``runs`` steps of each side and compare."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = as_folder(model, Path(scratch))
        ours, trl = (Side(name, folder, Path(scratch) / name, runs + 2, threads) for name in SIDES)
        for n in range(runs):
            for side in (ours, trl) if n % 2 == 0 else (trl, ours):
                side.step()
        ours.close()
        trl.close()
    a, b = ours.figures(), trl.figures()
    if a["tokens_trained"] != b["tokens_trained"] or a["tokens_generated"] != b["tokens_generated"]:
        raise SystemExit(f"the two sides did not do the same work: {a} {b}")
    ratios = [t["seconds"] / o["seconds"] for o, t in zip(ours.steps, trl.steps)]
    return {"speedup_vs_trl": round(b["median_seconds"] / a["median_seconds"], 3),
            "cpu_seconds_ratio": round(b["median_cpu_seconds"] / a["median_cpu_seconds"], 3),
            "load_average": os.getloadavg(), "speedup_by_round": [round(r, 3) for r in ratios],
            "peak_rss_ratio": round(b["peak_rss_mb"] / a["peak_rss_mb"], 3), "ours": a, "trl": b,
            "trl_version": metadata.version("trl"), "model": model.name, "threads": threads, "runs": runs,
            "work": {"prompts": len(PROMPTS), "group_size": GROUP, "new_tokens": NEW_TOKENS, "micro_batch": MICRO_BATCH,
                     "dtype": "float32", "kl": None}}


def run() -> dict[str, Any]:
    """For ``python -m scripts.bench``: the model is the file or folder that ``RLHF_SMOLLM2_GGUF`` names."""
    model = os.environ.get("RLHF_SMOLLM2_GGUF")
    if not model:
        raise SystemExit("grpo_step: set RLHF_SMOLLM2_GGUF to the .gguf file (or folder) of SmolLM2-135M-Instruct")
    return measure(Path(model), runs=5)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help=".gguf file or model folder")
    parser.add_argument("--runs", type=int, default=5, help="counted steps of each side")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of the side whose turn it is")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    args = parser.parse_args()
    results = measure(args.model, args.runs, args.threads)
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        print(*(f"{key}: {value}" for key, value in results.items()), sep="\n")


if __name__ == "__main__":
    main()

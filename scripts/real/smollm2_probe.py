"""What does a real model know of wrong steps before it is taught? Process and outcome heads on a frozen SmolLM2-135M.

The cheap relative of ``scripts.real.smollm2_prm``: one forward over changed GSM8K solutions and over the GSM8K part of
ProcessBench, and on the same hidden states at the ends of steps two linear heads, one taught with a label per step, one
with the outcome alone. Prints F1 of the first wrong step as ProcessBench defines it, and what scores that know nothing
reach.

    python -m scripts.real.smollm2_probe --model SmolLM2-135M-Instruct.gguf --data FOLDER

``--model`` is a hub id, folder or .gguf file (default: $RLHF_SMOLLM2_GGUF, else the hub's). ``--data`` holds ``gsm8k/``
and ``processbench/`` (default: $RLHF_TEST_DATA).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.api import DatasetSettings, ModelConfig
from rlhf_core.data.datasets import Datasets
from rlhf_core.kernels.matmul import use_products
from rlhf_core.models.load import load_policy
from rlhf_core.policy.forward import pad
from rlhf_plugin_prm.data.config import Gsm8kStepsConfig, ProcessBenchConfig
from rlhf_plugin_prm.evaluate import nowhere
from rlhf_plugin_prm.examples import Solution, read_solutions
from rlhf_plugin_prm.first_error import report
from rlhf_plugin_prm.net import StepEncoder
from rlhf_plugin_reward.net import trunk_of
from rlhf_plugin_reward.scoring import by_length
from scripts.bench.__main__ import commit, machine
from scripts.real.smollm2_gsm8k import ROOT
from scripts.studies.prm_vs_orm import auc


def main() -> None:
    """Features once, two heads, print, record."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real.smollm2_probe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=os.environ.get("RLHF_SMOLLM2_GGUF", "HuggingFaceTB/SmolLM2-135M-Instruct"))
    parser.add_argument("--data", type=Path, default=os.environ.get("RLHF_TEST_DATA"))
    parser.add_argument("--problems", type=int, default=600, help="GSM8K problems, two solutions each, to learn from")
    parser.add_argument("--solutions", type=int, default=400, help="of ProcessBench, evenly from its 400")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the frozen trunk")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="of the heads")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "studies" / "smollm2_probe.json")
    parser.add_argument("--note", default="", help="what else the machine was doing, for the record")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data, or $RLHF_TEST_DATA, must name the folder with gsm8k/ and processbench/")
    began, cpu = time.perf_counter(), time.process_time()
    changed = Gsm8kStepsConfig(path=str(args.data / "gsm8k" / "train.jsonl.gz"), problems=args.problems)
    train = rows(changed)
    bench = rows(ProcessBenchConfig(path=str(args.data / "processbench" / "gsm8k.json.gz")))
    bench = [bench[n] for n in np.linspace(0, len(bench) - 1, args.solutions).round().astype(int)]
    use_products("auto")
    policy = load_policy(ModelConfig(path=args.model, max_context=1024))  # a GGUF file is unpacked in float32 only
    encoder, trunk = StepEncoder(policy.tokenizer, 1024), trunk_of(policy).to(getattr(torch, args.dtype))
    seen, asked = (features(trunk, encoder, part) for part in (train, bench))
    labels = [s.first_error for s in bench]
    found: dict[str, Any] = {}
    for name in ("prm", "orm"):
        last = slice(-1, None) if name == "orm" else slice(None)
        told = [np.array([s.outcome] if name == "orm" else s.labels, float) for s in train]
        head = fit(np.concatenate([f[last] for f in seen]), np.concatenate(told), args.weight_decay)
        right = [head(f) for f in asked]
        ends = np.array([p[-1] if name == "orm" else p.min() for p in right])
        outcomes = np.array([s.outcome for s in bench])
        found[name] = {**report(right, labels), "answer_auc": round(auc(ends[outcomes], ends[~outcomes]), 4)}
    record = {
        "command": "python -m scripts.real.smollm2_probe",
        "problems": args.problems,
        "train_solutions": len(train),
        "dtype": args.dtype,
        "weight_decay": args.weight_decay,
        **found,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "commit": commit(),
        "machine": {
            **machine(),
            "threads": torch.get_num_threads(),
            "load_average": os.getloadavg(),
            "note": args.note,
        },
    }
    print(json.dumps(record, indent=1))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def rows(source: Any) -> list[Solution]:
    """The training split of a source as solutions."""
    settings = {"sources": ({"source": source},), "heldout_fraction": 0.0}
    datasets = Datasets(DatasetSettings.model_validate(settings), nowhere())
    return read_solutions(datasets.prompts("train"), "newline", datasets.where)


@torch.inference_mode()
def features(trunk: Any, encoder: StepEncoder, solutions: Sequence[Solution]) -> list[np.ndarray]:
    """Hidden states ``[S, H]`` at the last token of each step, one array per solution."""
    coded = [encoder.encode(s.prompt, s.text, s.steps)[:2] for s in solutions]
    found: dict[int, np.ndarray] = {}
    for batch in by_length([ids for ids, _ in coded], 4096):
        ids, mask = pad([coded[i][0] for i in batch], torch.device("cpu"))
        hidden = trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state.float().numpy()
        found |= {i: hidden[row, list(coded[i][1])] for row, i in enumerate(batch)}
    return [found[i] for i in range(len(solutions))]


def fit(features_NH: np.ndarray, labels_N: np.ndarray, decay: float) -> Any:
    """Logistic regression on standardised features, both classes with equal weight; returns features -> probability."""
    mean_H, std_H = features_NH.mean(0), features_NH.std(0) + 1e-6
    x = torch.tensor((features_NH - mean_H) / std_H, dtype=torch.float64)
    y = torch.tensor(labels_N, dtype=torch.float64)
    weight = torch.where(y > 0.5, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    w = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        each = torch.nn.functional.binary_cross_entropy_with_logits(x @ w[:-1] + w[-1], y, weight=weight)
        total = each + decay * w[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    found = w.detach().numpy()
    return lambda f: 1 / (1 + np.exp(-(((f - mean_H) / std_H) @ found[:-1] + found[-1])))


if __name__ == "__main__":
    main()

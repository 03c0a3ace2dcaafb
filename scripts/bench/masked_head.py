"""One forward and backward over a batch of episodes: the head on every token, and on the policy's tokens alone.

    RLHF_SMOLLM2_GGUF=SmolLM2-135M-Instruct.Q4_1.gguf python -m scripts.bench.masked_head --rounds 3

Both take turns in one process with one thread, packed and with shared prompts as in a run. CPU seconds are what to
compare where other work shares the machine. The difference of the gradient is that of rounding, over its norm.
Prints JSON; ``python -m scripts.bench masked_head`` records it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.matmul import use_matmul_backend
from rlhf_core.models.load import load_policy
from rlhf_core.training.forward import completion_logprobs
from scripts.bench._processor import processor
from scripts.bench._sides import smollm2

EPISODES, GROUP, PROMPT, TURNS, TURN, RESULT = 16, 4, 300, 4, 24, 40
"""Episodes, those of one prompt, and tokens: of a prompt, and of each turn and each result of an episode."""


def batch(vocabulary: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Random tokens: prompts, completions and masks."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[int, ...]:
        return tuple(rng.integers(6, vocabulary, n).tolist())

    mask = ([True] * TURN + [False] * RESULT) * (TURNS - 1) + [True] * TURN
    prompts = [p for _ in range(EPISODES // GROUP) for p in [draw(PROMPT)] * GROUP]
    return prompts, [draw(len(mask)) for _ in prompts], [mask] * EPISODES


def measure(path: Path | str, rounds: int) -> dict[str, Any]:
    """CPU seconds of both, and how far the gradients are apart."""
    use_matmul_backend("auto")
    torch.set_num_threads(1)
    model: Any = load_policy(ModelConfig(path=str(path))).model
    prompts, completions, masks = batch(int(model.config.vocab_size))
    chosen = torch.tensor([m for mask in masks for m in mask])
    seconds: dict[str, list[float]] = {"every token": [], "policy tokens": []}
    gradients: dict[str, torch.Tensor] = {}
    for _ in range(rounds):
        for name, given in (("every token", None), ("policy tokens", masks)):
            model.zero_grad(set_to_none=True)
            start = time.process_time()
            out = completion_logprobs(model, prompts, completions, entropy=True, masks=given)
            (out.logprobs_BT[out.mask_BT][chosen] * torch.cos(torch.arange(int(chosen.sum())))).mean().backward()
            seconds[name].append(time.process_time() - start)
            gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    middle = {name: statistics.median(rows) for name, rows in seconds.items()}
    every, some = gradients.values()
    return {
        "model": Path(path).name,
        "work": f"{EPISODES} episodes of {TURNS} turns of {TURN} tokens, results of {RESULT}, prompts of {PROMPT}",
        "policy_tokens": int(chosen.sum()),
        "completion_tokens": len(chosen),
        "cpu_seconds": {name: round(value, 3) for name, value in middle.items()},
        "saved": round(1 - middle["policy tokens"] / middle["every token"], 3),
        "gradient_gap": float(f"{float((every - some).norm() / every.norm()):.1e}"),
        "rounds": rounds,
        "processor": processor(),
    }


def run() -> dict[str, Any]:
    """For ``python -m scripts.bench``."""
    return measure(smollm2(), rounds=3)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help=".gguf file or model folder; default RLHF_SMOLLM2_GGUF")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(json.dumps(measure(args.model or smollm2(), args.rounds), indent=2))


if __name__ == "__main__":
    main()

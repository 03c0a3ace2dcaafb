"""Processor seconds of both, in turns, and how far the gradients are apart."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from rlhf_core.models import ModelConfig, load_policy, use_matmul_backend
from rlhf_core.training import completion_logprobs
from rlhf_studies.common.outside import model_path
from rlhf_studies.masked_head.config import MaskedHeadConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

GROUP, PROMPT, TURNS, TURN, RESULT = 4, 300, 4, 24, 40
"""Episodes of one prompt, and tokens: of a prompt, and of each turn and each result of an episode."""
MASK = ([True] * TURN + [False] * RESULT) * (TURNS - 1) + [True] * TURN


class MaskedHead(Study[MaskedHeadConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        use_matmul_backend("auto")
        model: Any = load_policy(ModelConfig(path=model_path(self.config.model))).model
        rng, count = np.random.default_rng(seed), self.config.episodes

        def draw(tokens: int) -> tuple[int, ...]:
            return tuple(rng.integers(6, int(model.config.vocab_size), tokens).tolist())

        prompts = [p for _ in range(-(-count // GROUP)) for p in [draw(PROMPT)] * GROUP][:count]
        completions, masks = [draw(len(MASK)) for _ in prompts], [MASK] * count
        chosen = torch.tensor(MASK * count)
        weights = torch.cos(torch.arange(int(chosen.sum())))
        seconds: dict[str, list[float]] = defaultdict(list)
        gradients: dict[str, torch.Tensor] = {}
        for _ in range(self.config.rounds):
            for name, mask in (("every token", None), ("policy tokens", masks)):
                model.zero_grad(set_to_none=True)
                start = time.process_time()
                out = completion_logprobs(model, prompts, completions, entropy=True, masks=mask)
                (out.logprobs_BT[out.mask_BT][chosen] * weights).mean().backward()
                seconds[name].append(time.process_time() - start)
                gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        every, some = gradients.values()
        middle = {name: median(rows) for name, rows in seconds.items()}
        return {
            "policy_tokens": len(weights),
            "completion_tokens": len(chosen),
            "cpu_seconds": middle,
            "saved": 1 - middle["policy tokens"] / middle["every token"],
            "gradient_gap": float((every - some).norm() / every.norm()),
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (seed, *(f"{s:.2f}" for s in row["cpu_seconds"].values()), f"{row['saved']:.3f}", row["gradient_gap"])
            for seed, row in results.items()
        ]
        return markdown(("seed", "every token, CPU s", "policy's tokens", "saved", "gradients' gap"), rows)

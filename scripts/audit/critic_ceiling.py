"""How much of the returns could PPO's critic explain? A fresh critic is fitted to fixed scores of the starting policy.

    OMP_NUM_THREADS=1 python -m scripts.audit.critic_ceiling --json docs/bench/critic_ceiling.json

Two pocket tasks: ``arithmetic`` (1 for the right sum, else 0) and ``assistant`` (the gold score). Every prompt has
several completions, so that the scores' variance splits into what prompts differ in, which is all that can be known
before the first token, and luck. The critic learns whole returns (lambda 1, no clipping) of some prompts; the variance
that it explains is measured on the others.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.matmul import use_matmul_backend
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_pocket.data import load_prompts
from rlhf_plugin_pocket.gold import gold_score
from rlhf_plugin_ppo.critic import Critic
from rlhf_plugin_ppo.maths import explained_variance
from scripts.bench._processor import processor

PROMPTS, GROUP, BATCH, UPDATES, LOOK = 160, 6, 64, 40, 10
MAX_TOKENS = {"arithmetic": 12, "assistant": 48}
LEARNING_RATE = 1e-3
"""As in the pocket recipe of PPO."""


class Scored(NamedTuple):
    """One completion and its score."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    score: float


def right_sum(row: Any, text: str) -> float:
    """Whether the last number is the sum."""
    return float((re.findall(r"-?\d+", text) or [""])[-1] == str(row["answer"]))


def gold(row: Any, text: str) -> float:
    """The pocket world's own score."""
    return float(gold_score(row["attribute"], row["answer"], text).value)


def sample(policy: LoadedModel, subset: str) -> list[list[Scored]]:
    """Scored completions, prompt by prompt."""
    score = right_sum if subset == "arithmetic" else gold
    prompts, formatter = load_prompts(subset, "train")[:PROMPTS], Formatter(policy.tokenizer, "auto")
    requests = [
        RolloutRequest(f"{n}", formatter.encode([{"role": "user", "content": row["prompt"]}]), g, seed=GROUP * n + g)
        for n, row in enumerate(prompts)
        for g in range(GROUP)
    ]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    rollouts = engine.generate(requests, SamplingParams(max_tokens=MAX_TOKENS[subset]), 0)
    rows = [Scored(r.prompt_ids, r.completion_ids, score(prompts[n // GROUP], r.text)) for n, r in enumerate(rollouts)]
    return [rows[at : at + GROUP] for at in range(0, len(rows), GROUP)]


def values(critic: Critic, rows: list[Scored]) -> torch.Tensor:
    """``[N]`` of every token, row after row."""
    return critic([r.prompt_ids for r in rows], [r.completion_ids for r in rows])


def returns(rows: list[Scored]) -> torch.Tensor:
    """The score at every token."""
    return torch.tensor([r.score for r in rows for _ in r.completion_ids])


def fit(policy: LoadedModel, groups: list[list[Scored]]) -> dict[str, float]:
    """Explained variance on held-out prompts by number of updates."""
    held = [row for group in groups[: PROMPTS // 4] for row in group]
    train = [row for group in groups[PROMPTS // 4 :] for row in group]
    critic = Critic(policy.model.config.hidden_size, torch.float32, policy.model.get_decoder())
    optimizer = torch.optim.AdamW(critic.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    rng, explained = np.random.default_rng(0), {}
    for update in range(1, UPDATES + 1):
        rows = [train[i] for i in rng.choice(len(train), BATCH, replace=False)]
        optimizer.zero_grad()
        (0.5 * (values(critic, rows) - returns(rows)).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        optimizer.step()
        if update % LOOK == 0:
            with torch.no_grad():
                share = explained_variance(values(critic, held).double().numpy(), returns(held).double().numpy())
            explained[f"after {update} updates"] = round(share or 0.0, 3)
    return explained


def measure(subset: str) -> dict[str, Any]:
    """Of one task."""
    policy = load_policy(ModelConfig())
    groups = sample(policy, subset)
    score_PG = np.array([[row.score for row in group] for group in groups])
    luck = float(score_PG.var(axis=1, ddof=1).mean())
    return {
        "mean_score": round(float(score_PG.mean()), 3),
        "share_of_variance_between_prompts": round(max(0.0, 1 - luck / float(score_PG.var())), 3),
        "explained_variance_on_held_out_prompts": fit(policy, groups),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    use_matmul_backend("auto")
    record: dict[str, Any] = {"command": f"OMP_NUM_THREADS=1 python -m {__spec__.name}", "processor": processor()}
    for subset in MAX_TOKENS:
        record[subset] = measure(subset)
        print(subset, json.dumps(record[subset], indent=2), flush=True)
        if args.json:
            args.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

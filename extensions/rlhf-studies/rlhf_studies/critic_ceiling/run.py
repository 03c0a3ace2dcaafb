"""Scores of the starting policy, split into prompts and luck, and a critic fitted to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_core.cli import load_sampler, open_registry
from rlhf_core.models import Formatter, LoadedModel, ModelConfig
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_pocket import gold_score
from rlhf_plugin_pocket.data import load_prompts
from rlhf_plugin_ppo.critic import Critic, trunk_of, width
from rlhf_plugin_ppo.maths import explained_variance
from rlhf_studies.critic_ceiling.config import CriticCeilingConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

GROUP, BATCH, LOOKS = 6, 64, 4
MAX_TOKENS = {"arithmetic": 12, "assistant": 48}
LEARNING_RATE = 1e-3
"""As in the pocket recipe of PPO."""


class Scored(NamedTuple):
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    score: float


class CriticCeiling(Study[CriticCeilingConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        return {task: self.measured(task, seed) for task in MAX_TOKENS}

    def measured(self, task: str, seed: int) -> dict[str, Any]:
        policy, engine = load_sampler(open_registry(), ModelConfig())
        prompts, formatter = load_prompts(task, "train")[: self.config.prompts], Formatter(policy.tokenizer, "auto")
        encoded = [formatter.encode([{"role": "user", "content": row["prompt"]}]) for row in prompts]
        requests = [
            RolloutRequest(f"{n}", ids, g, seed=GROUP * n + g) for n, ids in enumerate(encoded) for g in range(GROUP)
        ]
        rollouts = engine.generate(requests, SamplingParams(max_tokens=MAX_TOKENS[task]), 0)
        rows = [
            Scored(r.prompt_ids, r.completion_ids, scored(task, prompts[n // GROUP], r.text))
            for n, r in enumerate(rollouts)
        ]
        score_PG = np.array([row.score for row in rows]).reshape(-1, GROUP)
        luck, all_of_it = float(score_PG.var(axis=1, ddof=1).mean()), float(score_PG.var())
        return {
            "mean_score": float(score_PG.mean()),
            "share_of_variance_between_prompts": max(0.0, 1 - luck / all_of_it) if all_of_it else 0.0,
            "explained_variance_on_held_out_prompts": self.fit(policy, rows, seed),
        }

    def fit(self, policy: LoadedModel, rows: Sequence[Scored], seed: int) -> dict[str, float]:
        cut, updates = len(rows) // GROUP // 4 * GROUP, self.config.updates
        test, train = rows[:cut], rows[cut:]
        trunk = trunk_of(policy)
        critic = Critic(width(trunk), torch.float32, trunk)
        optimizer = torch.optim.AdamW(critic.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        rng, explained = np.random.default_rng(seed), {}
        for update in range(1, updates + 1):
            drawn = [train[i] for i in rng.choice(len(train), min(BATCH, len(train)), replace=False)]
            optimizer.zero_grad()
            (0.5 * (values(critic, drawn) - returns(drawn)).square().mean()).backward()
            torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
            optimizer.step()
            if update % max(1, updates // LOOKS) == 0:
                with torch.no_grad():
                    share = explained_variance(values(critic, test).double().numpy(), returns(test).double().numpy())
                explained[f"after {update} updates"] = round(share or 0.0, 3)
        return explained

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                seed,
                task,
                f"{row['mean_score']:.3f}",
                f"{row['share_of_variance_between_prompts']:.3f}",
                max(row["explained_variance_on_held_out_prompts"].values()),
            )
            for seed, figures in results.items()
            for task, row in figures.items()
        ]
        return markdown(("seed", "task", "mean score", "explained by prompts", "by the critic, at most"), rows)


def scored(task: str, row: Mapping[str, Any], text: str) -> float:
    """Whether the last number is the sum; of the assistant, the pocket world's own score."""
    if task == "arithmetic":
        return float((re.findall(r"-?\d+", text) or [""])[-1] == str(row["answer"]))
    return float(gold_score(row["attribute"], row["answer"], text).value)


def values(critic: Critic, rows: Sequence[Scored]) -> torch.Tensor:
    """``[N]`` of every token, row after row."""
    return critic([r.prompt_ids for r in rows], [r.completion_ids for r in rows])


def returns(rows: Sequence[Scored]) -> torch.Tensor:
    return torch.tensor([r.score for r in rows for _ in r.completion_ids])

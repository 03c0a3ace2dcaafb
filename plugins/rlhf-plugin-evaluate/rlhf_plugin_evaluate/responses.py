"""What each policy answers, with scores and KL: one row per prompt on disk, written in order, so a rerun goes on.

Suffix ``_T``: completion tokens of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_core.config import ConfigError
from rlhf_core.data import Datasets, JsonlFile, Prompt, read_jsonl
from rlhf_core.losses import kl_value
from rlhf_core.models import Formatter, LoadedModel, ModelConfig, load_policy
from rlhf_core.rewards import Score, score_samples
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams, request_seed
from rlhf_core.training import completion_logprobs
from rlhf_plugin_native.engine import NativeEngine

CHUNK = 64
"""Prompts between two writes: the most that an interruption costs."""
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass
class EvaluationSetup:
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    seed: int
    datasets: Datasets
    reward: Any = None
    reward_name: str = ""
    reference: LoadedModel | None = None
    """None measures no KL."""
    device: str | torch.device = "cpu"
    """Where the policies run."""


def answer_all(name: str, model: ModelConfig, setup: EvaluationSetup, file: Path, say: Say) -> list[Row]:
    """One row per prompt, in order; rows that are there already are kept."""
    rows = list(read_jsonl(file))
    if len(rows) < len(setup.prompts):
        policy = load_policy(model)
        policy.run_on(torch.device(setup.device))
        check_tokens(name, policy, setup.reference)
        out = JsonlFile.resume(file)
        try:
            for start in range(len(rows), len(setup.prompts), CHUNK):
                chunk = setup.prompts[start : start + CHUNK]
                for row in answer(policy, chunk, start, setup, model.prompt_format):
                    out.append(row)
                    rows.append(row)
                say(f"{name}: {len(rows)} of {len(setup.prompts)} prompts")
        finally:
            out.close()
    return rows


def answer(policy: LoadedModel, prompts: Sequence[Prompt], start: int, setup: EvaluationSetup, form: Any) -> list[Row]:
    """Rows of some prompts from number ``start``, which alone decides the seeds: every policy has the same."""
    formatter = Formatter(policy.tokenizer, form)
    seeds = [request_seed(setup.seed, "evaluate", start + i) for i in range(len(prompts))]
    requests = [RolloutRequest(p.id, formatter.encode_prompt(p), 0, s) for p, s in zip(prompts, seeds)]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    rollouts = engine.generate(requests, setup.sampling, 0)
    samples = [r.sample(p) for p, r in zip(prompts, rollouts)]
    scores: Sequence[Score | None] = [None] * len(samples)
    if setup.reward is not None:
        scores = score_samples(setup.reward, samples, f"reward '{setup.reward_name}'")
    columns = zip(prompts, rollouts, samples, scores, kl_rows(rollouts, setup), strict=True)
    return [
        {
            "id": prompt.id,
            "prompt": prompt.text,
            "completion": rollout.text,
            **({"audio": rollout.media[0].path} if rollout.media else {}),
            "tokens": len(rollout.completion_ids),
            "finish_reason": rollout.finish_reason.value,
            **score_row(score),
            **kl_row,
            "gold": setup.datasets.gold(sample),
        }
        for prompt, rollout, sample, score, kl_row in columns
    ]


def score_row(score: Score | None) -> Row:
    if score is None:
        return {}
    detail = {"detail": score.detail} if score.detail else {}
    return {"reward": score.value, "status": score.status.value, "parts": dict(score.parts), **detail}


@torch.inference_mode()
def kl_rows(rollouts: Sequence[Rollout], setup: EvaluationSetup) -> list[Row]:
    """KL(policy || reference) of each completion in nats: ``kl_k3`` (never negative) summed over tokens, and ``kl``."""
    if setup.reference is None:
        return [{}] * len(rollouts)
    rows: list[Row] = []
    for start in range(0, len(rollouts), 32):
        chunk = rollouts[start : start + 32]
        out = completion_logprobs(
            setup.reference.model,
            [r.prompt_ids for r in chunk],
            [r.completion_ids for r in chunk],
            temperature=setup.sampling.temperature,
        )
        for rollout, padded_T in zip(chunk, out.logprobs_BT.float().cpu().numpy()):
            reference_T = padded_T[: len(rollout.completion_ids)]
            k3 = float(np.sum(kl_value(rollout.logprobs_T, reference_T)))
            rows.append({"kl": float(np.sum(rollout.logprobs_T - reference_T)), "kl_k3": k3})
    return rows


def check_tokens(name: str, policy: LoadedModel, reference: LoadedModel | None) -> None:
    """Refuse a KL between models that do not write with the same tokens."""
    if reference is None or policy.tokenizer.get_vocab() == reference.tokenizer.get_vocab():
        return
    raise ConfigError(
        f"policy '{name}' and the reference have different tokens, so there is no KL between them",
        where=f"{policy.source} and {reference.source}",
        fix="--reference none, or another reference",
    )


def values(rows: Sequence[Mapping[str, Any]], by: str) -> list[float | None]:
    if by == "gold":
        return [float(r["gold"]["value"]) if r.get("gold") else None for r in rows]
    return [None if r.get("reward") is None else float(r["reward"]) for r in rows]

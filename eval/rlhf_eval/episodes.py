"""A model plays in an environment: chunk by chunk into a folder, and on from there after a kill."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, load_sampler
from rlhf_core.config import BuildContext, ConfigError, merge_settings, parse_settings
from rlhf_core.data import DatasetError, Prompt, json_values
from rlhf_core.models import ModelConfig, resolve_model, weights_digest
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import Rollout, SamplingParams, request_seed
from rlhf_eval.grading import category
from rlhf_eval.harness import conclude
from rlhf_eval.selectors import Say, Selector
from rlhf_eval.store import ResultFolder, named_folder
from rlhf_plugin_episodes.config import EnvironmentConfig

SECTIONS = ("environment", "agent", "dataset", "reward")
CHUNK = 64
"""Episodes between two writes, about: the most that an interruption costs."""


@dataclass(frozen=True)
class EpisodesJob:
    environment: EnvironmentConfig
    agent: Any
    reward: Any
    dataset: Mapping[str, Any]
    model: ModelConfig
    sampling: SamplingParams
    samples: int = 1
    limit: int | None = None
    seed: int = 0
    selectors: tuple[Selector, ...] = ()

    def prompts(self, ctx: BuildContext) -> list[Prompt]:
        """Held-out prompts, or all where none are held out, with the environment's tools."""
        return self._rows(self._datasets(ctx))

    def _datasets(self, ctx: BuildContext) -> Any:
        return context_of(ctx.registry, seed=self.seed, dataset=self.dataset, environment=self.environment).datasets

    def _rows(self, datasets: Any) -> list[Prompt]:
        rows = (datasets.prompts("heldout") or datasets.prompts("train"))[: self.limit]
        if not rows:
            raise DatasetError("the data set has no prompts", fix="give one with at least one row")
        self.environment.check_prompts(rows, datasets.where)
        return rows

    def settings(self, prompts: Sequence[Prompt]) -> dict[str, Any]:
        """Everything that decides the rows; a result folder belongs to one of these."""
        texts = "\n".join(json.dumps(json_values(asdict(p)), sort_keys=True, default=str) for p in prompts)
        parts = {name: getattr(self, name).model_dump(mode="json") for name in ("environment", "agent", "reward")}
        return {
            "suite": {"name": self.environment.name, "samples": self.samples, **parts},
            "sampling": asdict(self.sampling),
            "rows": {"count": len(prompts), "hash": hashlib.sha256(texts.encode()).hexdigest()[:16]},
            "model": {**self.model.model_dump(mode="json"), "weights": weights_digest(self.model.path)},
            "seed": self.seed,
            "prompts_per_chunk": max(1, CHUNK // self.samples),
        }

    def seen_in_training(self, ctx: BuildContext) -> dict[str, Any]:
        """``{"rows": n, "warning": text}`` if the runs that the model comes from trained on these prompts."""
        datasets = self._datasets(ctx)
        count, warning = datasets.seen_in_training(self.model.path, [p.id for p in self._rows(datasets)])
        return {"rows": count, "warning": warning} if count else {}


def job_of(
    ctx: BuildContext,
    name: str,
    settings: Sequence[str] = (),
    *,
    model: str | None = None,
    dataset: str | None = None,
    reward: str | None = None,
    max_tokens: int | None = None,
    temperature: float = 1.0,
    samples: int = 1,
    limit: int | None = None,
    selectors: tuple[Selector, ...] = (),
) -> EpisodesJob:
    """An evaluation in an environment; what is None is what goes with it (``companions``) in training."""
    sections = parse_settings(settings)
    if unknown := [key for key in sections if key not in SECTIONS]:
        raise ConfigError(f"--set {unknown[0]}: no such section here", fix=f"one of: {', '.join(SECTIONS)}")
    chosen = ctx.registry.config("environment", name, sections.get("environment"))
    assert isinstance(chosen, EnvironmentConfig)
    beside = chosen.companions
    if reward is None and not chosen.scores:
        raise ConfigError(
            f"environment '{name}' has no score of its own",
            why="a reward must judge its episodes",
            fix="--reward NAME, for example --reward verifier",
        )
    agent: dict[str, Any] = {"agent": "multi_turn"}
    for layer in (beside, sections):
        agent = merge_settings(agent, {"agent": layer.get("agent", {})})
    agent = dict(agent["agent"])
    data = {"name": dataset or beside.get("dataset") or "pocket/arithmetic", "heldout_fraction": 0.0}
    path = model or str(beside.get("model", {}).get("path", "pocket-tools"))
    resolve_model(path)
    chosen.preflight(ctx)
    limits = beside.get("trainer", {}).get("sampling", {})
    return EpisodesJob(
        chosen,
        ctx.registry.config("agent", str(agent.pop("name")), agent),
        ctx.registry.config("reward", reward or "environment", sections.get("reward")),
        {**data, **sections.get("dataset", {})},
        ModelConfig(path=path),
        SamplingParams(max_tokens=max_tokens or int(limits.get("max_tokens", 512)), temperature=temperature),
        samples,
        limit,
        ctx.seed,
        selectors,
    )


def evaluate_episodes(
    job: EpisodesJob, ctx: BuildContext, out: Path | None = None, say: Say = lambda text: None
) -> tuple[Path, dict[str, Any]]:
    """Play what is missing in the folder; returns the folder and the report."""
    prompts = job.prompts(ctx)
    settings = job.settings(prompts)
    words = ["episodes", job.environment.name]
    folder = ResultFolder(out or named_folder(Path("evals"), words, job.model.path, settings), settings)
    size = int(settings["prompts_per_chunk"])
    done = folder.open(size * job.samples)
    try:
        if done * size < len(prompts):
            _play(job, ctx, prompts, folder, range(done * size, len(prompts), size), size, say)
    finally:
        folder.close()
    return folder.path, conclude(job, ctx, folder, say)


def _play(
    job: EpisodesJob,
    ctx: BuildContext,
    prompts: Sequence[Prompt],
    folder: ResultFolder,
    starts: Sequence[int],
    size: int,
    say: Say,
) -> None:
    sampler = load_sampler(ctx.registry, job.model)
    groups = sampler.groups(prompts, job.samples)
    built = context_of(
        ctx.registry,
        seed=job.seed,
        dataset=job.dataset,
        reward=job.reward,
        model=job.model,
        policy=sampler.policy,
        environment=job.environment,
    )
    job.reward.preflight(built)
    for selector in job.selectors:
        if selector.kind == "reward":  # one that cannot read calls is refused before anything is played
            with built.open("reward", selector.config):
                pass
    with built.open("agent", job.agent) as agent, built.open("reward", job.reward) as reward:
        for first in starts:
            began, part = time.monotonic(), groups[first : first + size]
            seeds = [[request_seed(job.seed, "episodes", g.prompt.id, i) for i in range(job.samples)] for g in part]
            rollouts = sampler.play(agent, part, seeds, job.sampling)
            owners = [group.prompt for group in part for _ in range(job.samples)]
            rows = judged(owners, rollouts, reward)
            times = {"first": first, "completions": len(rows), "seconds": time.monotonic() - began}
            folder.append(rows, {**times, "tokens": sum(row["tokens"] for row in rows)})
            say(f"{(first + len(part)) * job.samples} of {len(groups) * job.samples} episodes")


def judged(prompts: Sequence[Prompt], rollouts: Sequence[Rollout], reward: Any) -> list[dict[str, Any]]:
    """A row for each episode; one that its environment broke has no score, whatever the reward."""
    samples = [rollout.sample(prompt) for prompt, rollout in zip(prompts, rollouts, strict=True)]
    scores = reward.score(samples)
    rows: list[dict[str, Any]] = []
    for prompt, sample, rollout, score in zip(prompts, samples, rollouts, scores, strict=True):
        broken = rollout.score is not None and not rollout.score.ok
        rows.append(_row(prompt, sample, rollout, rollout.score if broken and rollout.score else score))
    return rows


def _row(prompt: Prompt, sample: Sample, rollout: Rollout, score: Score) -> dict[str, Any]:
    written = int(len(rollout.completion_ids) if rollout.mask_T is None else rollout.mask_T.sum())
    total = float(rollout.logprobs_T.sum(dtype="float64"))
    ended = str(rollout.info.get("ended", ""))
    return {
        "id": prompt.id,
        "sample": rollout.group_index,
        "value": score.value,
        "status": score.status.value,
        "parts": dict(score.parts),
        "detail": score.detail or f"ended by {ended}",
        "category": category(score),
        "finish_reason": rollout.finish_reason.value,
        "stop": None,
        "ended": ended,
        "tokens": written,
        "logprob": total,
        "mean_logprob": total / written if written else None,
        "seed": rollout.seed,
        "answer": prompt.answer,
        "prompt": [dict(message) for message in prompt.messages],
        "tools": [dict(tool) for tool in prompt.tools],
        "completion": sample.completion,
        "turns": [json_values(asdict(turn)) for turn in rollout.turns],
        **({"meta": dict(prompt.meta)} if prompt.meta else {}),
    }

"""Both runs of a mix, both metrics, and what becomes of what is published about their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.config import RlhfError
from rlhf_core.data import Prompt
from rlhf_core.models import Formatter, ModelConfig
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import SamplingParams
from rlhf_plugin_episodes.lookup.config import LookupConfig
from rlhf_plugin_pocket import load_pairs
from rlhf_plugin_reward.config import BradleyTerryConfig
from rlhf_plugin_reward.reward import SingleReward
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.common.scores import auc_interval
from rlhf_studies.data_mixes.config import DataMixesConfig
from rlhf_studies.data_mixes.rows import Row, agentic, mixed
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean, spread

PUBLISHED: Mapping[str, tuple[float, float]] = {
    "pure_conv": (0.680, 0.667),
    "conv_synth": (0.700, 0.722),
    "conv_agentic": (0.670, 0.778),
    "equal_3way": (0.710, 0.833),
    "agentic_heavy": (0.690, 0.861),
    "pure_agentic": (0.580, 0.778),
}
"""AUC and accuracy, one run each, on 36 tasks."""
CLAIMS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "agentic data alone has the lowest reward AUC": ("auc", "pure_agentic", list(PUBLISHED)[:-1]),
    "an equal mix has a higher reward AUC than conversation alone": ("auc", "pure_conv", ["equal_3way"]),
    "an equal mix has a higher reward AUC than half and half agentic": ("auc", "conv_agentic", ["equal_3way"]),
    "conversation alone has the lowest agent accuracy": ("accuracy", "pure_conv", list(PUBLISHED)[1:]),
    "agentic-heavy is a better agent than agentic data alone": ("accuracy", "pure_agentic", ["agentic_heavy"]),
    "an equal mix is a better agent than conversation with agentic": ("accuracy", "conv_agentic", ["equal_3way"]),
    "agentic SFT is better than conversational SFT": ("accuracy", "pure_conv", ["pure_agentic"]),
}
"""What is published -> the metric, the lower mix, and the higher ones."""


class DataMixes(Study[DataMixesConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        mixes = {name: self.measured(name, seed, folder) for name in self.config.mixes}
        return {"start": accuracy(self.config.agent_start, self.config.tasks), "mixes": mixes}

    def measured(self, name: str, seed: int, folder: Path) -> dict[str, Any]:
        config = self.config
        pairs, shown = mixed(name, seed, config.rows)
        judge = {"name": "reward_model", "optimizer": {"learning_rate": 5e-4}}
        agent = {"name": "sft", "learn": "all", "optimizer": {"learning_rate": config.rate}}
        judged = self.trained(folder / f"{name}-reward", pairs, seed, config.reward_start, judge)
        played = self.trained(folder / f"{name}-agent", shown, seed, config.agent_start, agent)
        return {
            "auc": pair_scores(judged.final, load_pairs("heldout")[: config.pairs]),
            "agentic_auc": pair_scores(judged.final, agentic(min(200, config.pairs), 0, "heldout")),
            "accuracy": accuracy(str(played.final), config.tasks),
            "seconds": judged.summary["seconds"] + played.summary["seconds"],
        }

    def trained(self, folder: Path, rows: Sequence[Row], seed: int, model: str, trainer: Mapping[str, Any]) -> Run:
        file = folder.with_name(f"{folder.name}.jsonl")
        write_jsonl(file, rows)
        data = {"name": "jsonl", "path": str(file.resolve()), "heldout_fraction": 0.0, "max_dropped_fraction": 1.0}
        sizes = {"epochs": self.config.epochs, "batch_size": 32, "micro_batch_size": 16}
        often = {"eval_samples": 0, "eval_every": 0, "checkpoint_every": 25, "keep_checkpoints": 1}
        settings = {"seed": seed, "model": {"path": model}, "dataset": data}
        return train(folder, {**settings, "trainer": {**trainer, **sizes, **often}})

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [
            (
                name,
                spread(figures["mixes"][name]["auc"]["auc"] for figures in results.values()),
                PUBLISHED[name][0],
                spread(figures["mixes"][name]["accuracy"] for figures in results.values()),
                PUBLISHED[name][1],
                spread(figures["mixes"][name]["agentic_auc"]["auc"] for figures in results.values()),
            )
            for name in next(iter(results.values()))["mixes"]
        ]
        table = markdown(("mix", "AUC", "published", "accuracy", "published", "agentic AUC"), rows)
        lines = [f"- {claim}: {called(results, *parts)}" for claim, parts in CLAIMS.items()]
        before = f"Accuracy before training: {mean(figures['start'] for figures in results.values()):.3f}"
        return "\n".join([table, "", before, "", *lines])


def called(results: Mapping[int, Mapping[str, Any]], metric: str, lower: str, higher: Sequence[str]) -> str:
    """The verdict on a claim: a difference counts where it has the same sign in every seed, at least three."""
    if any({lower, *higher} - set(result["mixes"]) for result in results.values()):
        return "not run"
    if len(results) < 3:
        return "not resolvable here: fewer than three seeds"

    def value(seed: int, name: str) -> float:
        figure = results[seed]["mixes"][name][metric]
        return figure["auc"] if metric == "auc" else figure

    signs = [{np.sign(value(s, name) - value(s, lower)) for s in results} for name in higher]
    if all(pair == {1.0} for pair in signs):
        return "reproduced"
    return "contradicted" if any(pair == {-1.0} for pair in signs) else "not resolvable here"


def pair_scores(model: Path, rows: Sequence[Row]) -> dict[str, float]:
    reward = SingleReward.load(BradleyTerryConfig(path=str(model)), "cpu")

    def scores(side: str) -> list[float]:
        prompts = [Prompt(str(i), ({"role": "user", "content": row["prompt"]},)) for i, row in enumerate(rows)]
        scored = reward.score([Sample(prompt, row[side]) for prompt, row in zip(prompts, rows)])
        values = [s.value for s in scored if s.value is not None]
        if len(values) < len(rows):
            raise RlhfError(f"'{model}' has no score of a pair's {side} side")
        return values

    chosen, rejected = scores("chosen"), scores("rejected")
    labels, groups = [True] * len(rows) + [False] * len(rows), [row["prompt"] for row in rows] * 2
    ordered = mean(float(a > b) for a, b in zip(chosen, rejected))
    return {**auc_interval([*chosen, *rejected], labels, groups), "accuracy": ordered}


def accuracy(model: str, tasks: int) -> float:
    """Share of right answers to held-out questions of `lookup`, as many of each number of calls, played greedily."""
    registry, config = open_registry(), ModelConfig(path=model)
    sampler = load_sampler(registry, config)
    environment = registry.config("environment", "lookup")
    settings, data = LookupConfig.companions, {"name": "lookup", "prompts": 5 * tasks}  # a fifth is held out
    ctx = context_of(registry, dataset=data, model=config, policy=sampler.policy, environment=environment)
    formatter = Formatter(sampler.policy.tokenizer, config.prompt_format, config.tool_format)
    sampling = SamplingParams(**settings["trainer"]["sampling"], temperature=0.0)
    with ctx.open("agent", registry.config("agent", "multi_turn", settings["agent"])) as agent:
        rollouts = sampler.sample(ctx.datasets.prompts("heldout"), sampling, 1, 0, formatter, agent)
    judged = [rollout.score.value for rollout in rollouts if rollout.score is not None and rollout.score.ok]
    if not judged:
        raise RlhfError("no play has a verdict")
    return mean(float(value == 1.0) for value in judged)

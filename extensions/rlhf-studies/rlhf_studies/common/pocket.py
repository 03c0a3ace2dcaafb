"""Rows of the pocket world: datasets outside a run, sampled answers with their gold score, reward models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.config import BuildContext
from rlhf_core.data import PreferencePair, Prompt
from rlhf_core.models import ModelConfig
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import SamplingParams
from rlhf_eval.statistics import spearman
from rlhf_plugin_datagen.confidence import margins, row_of
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_pocket import Fact, gold_score, of_split
from rlhf_study.runs import Run

GOLD = {
    "gold": "eval/gold/value",
    **{name: f"eval/gold/{name}" for name in ("right", "hollow", "words")},
}
"""Short name -> metric of a held-out evaluation."""
Row = dict[str, Any]


class Answer(NamedTuple):
    fact: Fact
    prompt: Prompt
    text: str
    gold: float


def write_jsonl(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def assistant() -> BuildContext:
    """A context outside any run with the assistant's prompts and pairs in ``ctx.datasets``."""
    return context_of(open_registry(), dataset={"name": "pocket/assistant"})


def gold_of(ctx: BuildContext, answer: Sample) -> float:
    gold = ctx.datasets.gold(answer)
    assert gold is not None, "pocket/assistant has a gold score"
    return float(gold["value"])


def sampled_answers(prompts: int, each: int, seed: int, split: Literal["train", "heldout"] = "heldout") -> list[Answer]:
    """Answers of the pocket policy to the first questions of a split, question by question."""
    facts = of_split(split)[:prompts]
    questions = [Prompt(f"p/{i}", ({"role": "user", "content": question},)) for i, (_, question) in enumerate(facts)]
    sampler = load_sampler(open_registry(), ModelConfig())
    rollouts = sampler.sample(questions, SamplingParams(max_tokens=48), each, seed)
    return [
        Answer(fact, questions[i], text, gold_score(fact.attribute.name, fact.value, text).value)
        for i, (fact, _) in enumerate(facts)
        for text in (rollout.text for rollout in rollouts[i * each : (i + 1) * each])
    ]


def first_and_last(run: Run) -> tuple[dict[str, float], dict[str, float]]:
    """Gold at the first and the last held-out evaluation of a run."""
    rows = run.rows(GOLD["gold"])
    first, last = ({name: float(row[key]) for name, key in GOLD.items()} for row in (rows[0], rows[-1]))
    return first, last


def first_member(run: Run) -> Path:
    """The first reward model of the ensemble that a run was trained with."""
    from rlhf_plugin_reward.store import cache_root

    return cache_root() / run.summary["reports"]["ensemble"]["digest"] / "member_0"


def rank_with_gold(reward: Mapping[str, Any], answers: Sequence[Answer]) -> float:
    """Rank correlation of a reward section's scores with gold."""
    registry, settings = open_registry(), dict(reward)
    config = registry.config("reward", settings.pop("name"), settings)
    with context_of(registry, dataset={"name": "pocket/assistant"}).open("reward", config) as opened:
        scores = [float(score.value or 0.0) for score in opened.score([Sample(a.prompt, a.text) for a in answers])]
    return spearman(np.array(scores), np.array([answer.gold for answer in answers]))


def pairs_of(dataset: Mapping[str, Any], seed: int) -> dict[str, list[PreferencePair]]:
    """Training and held-out pairs of a run's dataset section."""
    settings = dict(dataset)
    data = open_datasets(open_registry(), settings.pop("name"), seed, **settings)
    return {split: list(data.pairs(split)) for split in ("train", "heldout")}


def write_pairs(file: Path, pairs: Iterable[PreferencePair]) -> Path:
    write_jsonl(file, (row_of(pair, None, {}) for pair in pairs))
    return file


def pair_margins(reward: str, model: Path, pairs: Sequence[PreferencePair]) -> list[float | None]:
    """``r(chosen) - r(rejected)`` of every pair under a reward model."""
    registry = open_registry()
    ctx = context_of(registry, dataset={"name": "pocket/assistant"})
    with ctx.open("reward", registry.config("reward", reward, {"path": str(model)})) as opened:
        return margins(opened, pairs)

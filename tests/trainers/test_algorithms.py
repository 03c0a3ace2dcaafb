"""A short run of the pocket model with every loss and advantage, and what the loop's own settings do to a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.plugins.registry import Registry
from rlhf_core.rl.advantages import apply_overlong_penalty
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.rl.settings import OverlongSettings
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.types.rollouts import Score, ScoreStatus
from rlhf_plugin_schedule.uncertain import keep_uncertain
from rlhf_testing.samples import make_rollout

from .conftest import ONLINE, Train

QUICK = ("grpo_clip", "rloo", "luspo", "dapo", "group_norm", "turn", "optimal_baseline")
EACH = [
    pytest.param(e.kind, e.name, id=f"{e.kind}-{e.name}", marks=() if e.name in QUICK else pytest.mark.slow)
    for e in Registry(disabled=()).entries()
    if e.distribution == "rlhf-plugin-grpo" and e.kind in ("loss", "advantage") and e.name != "remax"  # a trainer's
]
SHORT = {
    "trainer": {
        "steps": 1,
        "rollout_batch_size": 16,
        "group_size": 8,
        "eval_samples": 0,
        "gold_samples": 0,
        "micro_batch_size": 16,
        "sampling": {"max_tokens": 12},
        "kl": {"track": False},
    }
}


def steps(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_jsonl(folder / "metrics.jsonl") if "tokens_generated" in r]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_step_with_each(train: Train, kind: str, name: str) -> None:
    """Two updates, so that the second is off policy; one for a loss that has no ratio to correct that."""
    size = 16 if name.startswith(("reinforce", "no_baseline")) and kind == "loss" and name != "reinforce_pp" else 8
    train(
        ONLINE,
        change={"trainer": {**SHORT["trainer"], "train_batch_size": size, "drop_constant_groups": False}, kind: name},
    )
    rows = steps(train.folder / "run")
    assert len(rows) == 1
    assert all(np.isfinite([r["loss"], r["grad_norm"]]).all() for r in rows)
    assert any(r["grad_norm"] > 0 for r in rows)


def run(train: Train, name: str, **settings: Any) -> list[dict[str, Any]]:
    train(ONLINE, change={"trainer": {**SHORT["trainer"], **settings}}, run=name)
    return steps(train.folder / name)


@pytest.mark.slow
def test_the_entropy_bonus_raises_entropy_also_where_all_scores_are_equal(train: Train) -> None:
    """Completions cut before they name a number all score 0, so that nothing but the bonus has a gradient."""
    short = {"steps": 6, "optimizer": {"learning_rate": 3e-3, "warmup_steps": 0}, "sampling": {"max_tokens": 3}}
    short["kl"] = {"coefficient": 0}
    plain = run(train, "plain", **short)
    assert [r["updates_skipped"] for r in plain] == [1] * 6
    bonus = [r["entropy"] for r in run(train, "bonus", **short, entropy_coefficient=0.1)]
    assert bonus[5] > 2 * bonus[0]


@pytest.mark.slow
def test_the_entropy_quantile_does_not_depend_on_the_micro_batch(train: Train) -> None:
    """Here the threshold falls among tokens of equal entropy (the same position after the same text)."""
    row = run(train, "one", steps=1, entropy_quantile=0.1)[0]
    other = run(train, "other", steps=1, entropy_quantile=0.1, micro_batch_size=3)[0]
    assert (row["entropy_threshold"], row["grad_norm"]) == pytest.approx(
        (other["entropy_threshold"], other["grad_norm"]), rel=1e-4
    )
    fewer, everything = run(train, "few", steps=1, entropy_quantile=0.03)[0], run(train, "all", steps=1)[0]
    assert fewer.get("grad_norm", 0.0) < 0.9 * everything["grad_norm"]
    assert fewer["train/tokens"] == everything["train/tokens"]


class Ranks(LocalStrategy):
    """One of several ranks, whose values are known beforehand."""

    def __init__(self, shards: list[Any]) -> None:
        super().__init__()
        self.shards = shards

    def exchange_objects(self, outgoing: Sequence[Any]) -> list[Any]:
        return self.shards if isinstance(outgoing[0], list) else list(outgoing)


def test_the_entropy_quantile_is_that_of_all_ranks_and_of_chosen_tokens_only() -> None:
    rng = np.random.default_rng(0)
    items = [TrainingSample.from_rollout(make_rollout(0, g, 4 + g), advantage=1.0) for g in range(4)]
    entropies = [rng.random(i.tokens).astype(np.float32) for i in items]
    items[1] = TrainingSample(
        items[1].name,
        items[1].prompt_ids,
        items[1].completion_ids,
        np.array([True] * 4 + [False]),
        items[1].advantages_T,
    )
    entropies[1][4] = 99.0  # a tool's token
    whole, found = keep_uncertain(items, entropies, 0.3, LocalStrategy())
    kept = np.concatenate([i.advantages_T[i.mask_T] for i in whole])
    seen = np.concatenate([e[i.mask_T] for i, e in zip(items, entropies)])
    assert (kept > 0).sum() == pytest.approx(0.3 * len(seen), abs=1)
    assert seen[kept > 0].min() >= found["entropy_threshold"] > seen[kept == 0].max()
    shards = [[e[i.mask_T] for i, e in zip(items[a:b], entropies[a:b])] for a, b in ((0, 1), (1, 4))]
    for a, b in ((0, 1), (1, 4)):
        part, same = keep_uncertain(items[a:b], entropies[a:b], 0.3, Ranks(shards))
        assert same == found
        assert all(np.array_equal(x.advantages_T, y.advantages_T) for x, y in zip(part, whole[a:b]))


@pytest.mark.parametrize(
    ("length", "cache", "penalty"),
    [
        (8, 4.0, 0.0),
        (9, 4.0, 0.25),
        (11, 4.0, 0.75),
        (12, 4.0, 1.0),
        (11, 0.25, 2 / 3),
        (12, 0.0, 0.0),
    ],
)
def test_the_overlong_penalty_grows_over_the_last_tokens(length: int, cache: float, penalty: float) -> None:
    settings = OverlongSettings(cache=cache, weight=3)
    score = apply_overlong_penalty(Score(2.0, {"a": 1.0}), make_rollout(0, 0, length), 12, settings)
    assert score.value == pytest.approx(2.0 - 3 * penalty)
    assert score.parts == ({"a": 1.0} if not cache else {"a": 1.0, "overlong": pytest.approx(-3 * penalty)})


def test_a_missing_score_is_not_charged_and_an_impossible_cache_is_refused() -> None:
    missing = Score.failed(ScoreStatus.TIMEOUT, "slow")
    assert apply_overlong_penalty(missing, make_rollout(0, 0, 12), 12, OverlongSettings(cache=4)) is missing
    with pytest.raises(ValueError, match="longer than max_tokens 64"):
        OnlineTrainerConfig(name="t", overlong=OverlongSettings(cache=65))


def test_a_run_charges_long_completions(train: Train) -> None:
    rows = run(train, "run", overlong={"cache": 6, "weight": 0.5})
    assert rows[0]["reward/part/overlong"] < 0

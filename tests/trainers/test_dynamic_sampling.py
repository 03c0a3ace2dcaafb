"""Dynamic sampling: constant groups are replaced, counted and traced; the process count changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.training.rollout_batch import RolloutGroup
from rlhf_core.types.rollouts import Prompt, PromptGroup, Sample, Score, ScoreStatus
from rlhf_plugin_schedule.dynamic_collector import has_signal

from .conftest import GROUPS, Numbers, largest_difference, one_and_two_processes, with_trainer

BASE = with_trainer(GROUPS, rollout_batch_size=16, dynamic_sampling={"max_rounds": 8})


def changed(**trainer: Any) -> dict[str, Any]:
    return with_trainer(BASE, **trainer)


def rows(run: Path, event: str) -> list[dict[str, Any]]:
    return [r for r in read_jsonl(run / "trace.jsonl") if r["event"] == event]


def steps(run: Path) -> list[dict[str, Any]]:
    return [r for r in read_jsonl(run / "metrics.jsonl") if "tokens_generated" in r]


def values(row: dict[str, Any]) -> set[float]:
    return {c["score"] for c in row["completions"]}


@pytest.mark.slow
def test_every_group_of_the_batch_teaches(train: Any, tmp_path: Path) -> None:
    summary = train(BASE)
    kept, aside = rows(tmp_path / "run", "prompt"), rows(tmp_path / "run", "set_aside")
    assert len(kept) == 12
    assert all(len(values(r)) == 2 for r in kept)
    assert aside
    assert all(len(values(r)) == 1 for r in aside)
    assert summary["dropped"]["groups_set_aside"] == len(aside)
    assert summary["dropped"].get("constant_groups", 0) == 0
    assert summary["dropped"]["groups_not_refilled"] == 0
    for row in steps(tmp_path / "run"):
        mine = [r for r in (*kept, *aside) if r["step"] == row["step"]]
        done = [c for r in mine for c in r["completions"]]
        assert row["tokens_generated"] == sum(c["tokens"] for c in done)
        assert row["reward/mean"] == pytest.approx(np.mean([c["score"] for c in done]))
        assert row["dynamic_sampling/set_aside"] == len(mine) - 4
        assert row["train/tokens"] == sum(c["tokens"] for r in mine if r["event"] == "prompt" for c in r["completions"])
        assert row["drift/mean_abs"] < 1e-4
    seeds = [c["seed"] for r in (*kept, *aside) for c in r["completions"]]
    assert len(set(seeds)) == len(seeds)


def test_rounds_are_bounded_and_the_step_trains_on_what_there_is(train: Any, tmp_path: Path) -> None:
    summary = train(changed(dynamic_sampling={"max_rounds": 1}))
    kept, aside = rows(tmp_path / "run", "prompt"), rows(tmp_path / "run", "set_aside")
    assert len(kept) + len(aside) == 12
    assert 0 < len(kept) < 12
    assert summary["dropped"]["groups_not_refilled"] == len(aside)
    assert [r["dynamic_sampling/missing"] for r in steps(tmp_path / "run")] == [
        sum(r["step"] == n for r in aside) for n in (1, 2, 3)
    ]


def test_no_group_left_makes_no_update(train: Any, tmp_path: Path) -> None:
    sampling = {"max_tokens": 1}  # no answer in one token: every reward is 0
    summary = train(changed(steps=1, sampling=sampling, dynamic_sampling={"max_rounds": 2}, train_batch_size=8))
    assert summary["updates"] == 0
    assert summary["dropped"]["groups_set_aside"] == 8
    assert steps(tmp_path / "run")[0]["reward/mean"] == 0


@pytest.mark.slow
def test_several_updates_share_a_batch_that_is_not_full(train: Any, tmp_path: Path) -> None:
    summary = train(changed(dynamic_sampling={"max_rounds": 1}, train_batch_size=4, epochs_per_rollout_batch=2))
    kept = rows(tmp_path / "run", "prompt")
    assert summary["updates"] == 2 * len(kept), "one per group and epoch"


def test_missing_scores_stop_the_run_in_the_first_round(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_core.types.errors import ScoreError

    calls: list[int] = []

    def broken(self: Numbers, samples: Sequence[Sample]) -> list[Score]:
        calls.append(len(samples))
        return [Score.failed(ScoreStatus.ERROR, "no")] * len(samples)

    monkeypatch.setattr(Numbers, "score", broken)
    with pytest.raises(ScoreError, match="16 of 16 scores are missing"):
        train(changed(eval_samples=0))
    assert calls == [16]


@pytest.mark.slow
@pytest.mark.long  # two processes with dynamic sampling, ahead of the learner too: test_rollouts_ahead.py
def test_two_processes_sample_and_keep_what_one_does(tmp_path: Path) -> None:
    runs = one_and_two_processes(tmp_path, "steps=1", "rollout_batch_size=16", "dynamic_sampling.max_rounds=2")
    for event in ("prompt", "set_aside"):
        one, two = ([(r["prompt_id"], [c["text"] for c in r["completions"]]) for r in rows(run, event)] for run in runs)
        assert one == two
    assert largest_difference(*runs) < 1e-6
    counts = [json.loads((run / "summary.json").read_text())["dropped"] for run in runs]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("found", "teaches"),
    [
        ([1.0, 0.0, 1.0], True),
        ([1.0, 1.0, 1.0], False),
        ([0.0, 0.0], False),
        ([1.0, None, None], False),
        ([1.0, None, 0.5], True),
        ([1e6, 1e6 + 1, 1e6], False),
        ([None, None], False),
    ],
)
def test_what_teaches(found: list[float | None], teaches: bool) -> None:
    scores = [Score.failed(ScoreStatus.TIMEOUT, "slow") if v is None else Score(v) for v in found]
    group = PromptGroup(Prompt("a/1", ({"role": "user", "content": "x"},)), (1,), len(found))
    assert has_signal(RolloutGroup(group, [], scores)) is teaches

"""Adaptive sampling: groups of varying size, each as large as it takes, through the whole step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_core.config import ConfigError
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.rl.settings import AdaptiveSampling
from rlhf_plugin_schedule.checks import check_adaptive

from .conftest import GROUPS, largest_difference, one_and_two_processes, with_trainer

ADAPTIVE = {"k_success": 2, "k_failure": 1, "max_completions": 10, "chunk_size": 4}
BASE = with_trainer(GROUPS, rollout_batch_size=32, adaptive_sampling=ADAPTIVE)


def changed(**trainer: Any) -> dict[str, Any]:
    return with_trainer(BASE, **trainer)


def rows(run: Path, event: str = "prompt") -> list[dict[str, Any]]:
    return [r for r in read_jsonl(run / "trace.jsonl") if r["event"] == event]


def steps(run: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in r.items() if k != "time"}
        for r in read_jsonl(run / "metrics.jsonl")
        if "tokens_generated" in r
    ]


def enough(scores: list[float]) -> bool:
    return sum(s > 0.5 for s in scores) >= 2 and sum(s <= 0.5 for s in scores) >= 1


def check_groups(found: list[dict[str, Any]]) -> int:
    """Every group is as large as it had to be and no larger; returns how many were one-sided to the end."""
    lacking = 0
    for row in found:
        scores = [c["score"] for c in row["completions"]]
        assert len(scores) in (4, 8, 10)
        before = {4: 0, 8: 4, 10: 8}[len(scores)]
        assert not enough(scores[:before])
        assert enough(scores) or len(scores) == 10
        lacking += not enough(scores)
        if row["event"] == "prompt":
            advantage = (np.array(scores) - np.mean(scores)) / (np.std(scores, ddof=1) + 1e-6)
            assert [c["advantage"] for c in row["completions"]] == pytest.approx(list(advantage), abs=1e-5)
    return lacking


@pytest.mark.slow
def test_every_prompt_gets_what_it_needs(train: Any, tmp_path: Path) -> None:
    summary = train(changed(trace_prompts=99))
    found = rows(tmp_path / "run")
    assert len(found) == 24
    assert {len(r["completions"]) for r in found} == {4, 8, 10}
    assert summary["dropped"]["prompts_one_sided"] == check_groups(found)
    for row in steps(tmp_path / "run"):
        done = [c for r in found if r["step"] == row["step"] for c in r["completions"]]
        assert row["tokens_generated"] == row["train/tokens"] == sum(c["tokens"] for c in done)
        assert row["reward/mean"] == pytest.approx(np.mean([c["score"] for c in done]))
        assert row["adaptive/group_size"] == len(done) / 8
        assert row["drift/mean_abs"] < 1e-4, "every completion is trained on with its own prompt and logprobs"
    seeds = [c["seed"] for r in found for c in r["completions"]]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.slow
def test_the_first_chunk_is_that_of_fixed_groups(train: Any, tmp_path: Path) -> None:
    train(changed(steps=1), run="run")
    train(changed(steps=1, adaptive_sampling=None), run="fixed")
    first, fixed = ([[c["text"] for c in r["completions"][:4]] for r in rows(tmp_path / n)] for n in ("run", "fixed"))
    assert first == fixed


@pytest.mark.slow
def test_together_with_refill_and_several_updates(train: Any, tmp_path: Path) -> None:
    summary = train(changed(dynamic_sampling={"max_rounds": 3}, train_batch_size=8, epochs_per_rollout_batch=2))
    kept, aside = rows(tmp_path / "run"), rows(tmp_path / "run", "set_aside")
    assert aside
    assert all(len({c["score"] for c in r["completions"]}) == 1 for r in aside)
    assert all(len({c["score"] for c in r["completions"]}) == 2 for r in kept)
    assert summary["dropped"]["prompts_one_sided"] == check_groups([*kept, *aside])
    assert summary["updates"] == 24
    for row in steps(tmp_path / "run"):
        tokens = sum(c["tokens"] for r in kept if r["step"] == row["step"] for c in r["completions"])
        assert row["train/tokens"] == 2 * tokens, "two epochs"


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_draw_what_one_does(tmp_path: Path) -> None:
    settings = ("steps=1", "rollout_batch_size=24", f"adaptive_sampling={json.dumps(ADAPTIVE)}")
    runs = one_and_two_processes(tmp_path, *settings)
    one, two = ([(r["prompt_id"], [c["text"] for c in r["completions"]]) for r in rows(run)] for run in runs)
    assert one == two
    assert largest_difference(*runs) < 1e-6


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"k_success": 4, "k_failure": 4, "max_completions": 7}, "cannot hold 4 successes and 4 failures"),
        ({"chunk_size": 9, "max_completions": 8}, "chunk_size 9 is more than max_completions 8"),
        ({"k_success": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_met(settings: dict[str, int], says: str) -> None:
    with pytest.raises((ValidationError, ConfigError), match=says):
        check_adaptive(AdaptiveSampling(**settings))


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"chunk_size": 4}, 4),
        ({"chunk_size": 1}, 2),
        ({"k_success": 3, "chunk_size": 3}, 6),
        ({"k_success": 3, "chunk_size": 3, "max_completions": 5}, 5),
    ],
)
def test_smallest_group(settings: dict[str, int], size: int) -> None:
    assert AdaptiveSampling(**settings).smallest_group == size

"""A row for each optimizer update where a step makes several, and what is largest in a step; resumed runs have both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlhf_core
from rlhf_core.data import read_jsonl


def train(folder: Path, steps: int, **trainer: Any) -> Any:
    sizes = {"rollout_batch_size": 16, "group_size": 4, "sampling": {"max_tokens": 8}, "eval_samples": 0}
    sources = [{"name": "pocket", "subset": "arithmetic"}, {"name": "pocket", "subset": "assistant"}]
    return rlhf_core.train(
        "grpo",
        reward="random",
        settings={
            "dataset": {"sources": [{**source, "weight": 1.0} for source in sources]},
            "trainer": {**sizes, "steps": steps, "optimizer": {"learning_rate": 1e-3}, **trainer},
            "threads": 1,
        },
        run_dir=folder,
        progress=False,
    )


def rows(file: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "time"} for row in read_jsonl(file)]


@pytest.mark.slow
def test_every_update_has_a_row_and_a_resumed_run_the_same(tmp_path: Path) -> None:
    several = {"train_batch_size": 8, "epochs_per_rollout_batch": 2, "importance": {"mode": "truncate"}}
    train(tmp_path / "whole", 2, **several)
    updates = rows(tmp_path / "whole" / "updates.jsonl")
    assert [(row["step"], row["epoch"], row["update"]) for row in updates[:5]] == [
        (1, 1, 1),
        (1, 1, 2),
        (1, 2, 3),
        (1, 2, 4),
        (2, 1, 5),
    ]
    (first,) = [row for row in rows(tmp_path / "whole" / "metrics.jsonl") if row["step"] == 1 and "loss" in row]
    of_step = updates[:4]
    assert first["grad_norm"] == pytest.approx(sum(row["grad_norm"] for row in of_step) / 4)
    assert first["ratio_max"] == max(row["ratio_max"] for row in of_step) > 1.0
    assert {"loss", "entropy", "clip_fraction", "approx_kl"} <= of_step[0].keys()
    assert all("importance/mean_square" not in row and 0 < row["importance/ess"] <= 1.001 for row in updates)
    train(tmp_path / "cut", 1, **several).resume(settings={"trainer.steps": 2})
    assert rows(tmp_path / "cut" / "updates.jsonl") == updates


def test_a_step_of_one_update_is_its_own_row_and_says_what_is_largest(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    assert not (tmp_path / "run" / "updates.jsonl").exists()
    for row in (row for row in rows(tmp_path / "run" / "metrics.jsonl") if "loss" in row):
        assert row["ratio_max"] == 1.0
        assert row["kl_max"] >= row["kl"] >= 0
        means = [row[f"pocket/{subset}/reward/mean"] for subset in ("arithmetic", "assistant")]
        assert sum(means) / 2 == pytest.approx(row["reward/mean"])


def test_shares_of_groups_that_are_all_right_and_all_wrong(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 2, group_size=2)
    trace = [row for row in read_jsonl(tmp_path / "run" / "trace.jsonl") if "completions" in row]
    for step in (1, 2):
        groups = [[c["score"] for c in row["completions"]] for row in trace if row["step"] == step]
        metrics = next(row for row in rows(run.path / "metrics.jsonl") if row["step"] == step and "loss" in row)
        assert metrics["groups/all_right"] == sum(set(group) == {1.0} for group in groups) / len(groups)
        assert metrics["groups/all_wrong"] == sum(set(group) == {0.0} for group in groups) / len(groups)
        assert 0 < metrics["groups/all_wrong"] < 1


def test_demonstrations_have_no_ratio_to_a_policy_that_sampled(tmp_path: Path) -> None:
    settings = {"trainer.max_steps": 1, "trainer.eval_samples": 4, "threads": 1, "trainer.sample_prompts": 0}
    run = rlhf_core.train(
        "sft", dataset="pocket/assistant", settings=settings, run_dir=tmp_path / "run", progress=False
    )
    assert not [name for row in rows(run.path / "metrics.jsonl") for name in row if "ratio" in name or "approx" in name]

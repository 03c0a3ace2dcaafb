"""Adaptive sampling: groups of varying size, each as large as it takes, through the whole step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from rlhf_core.runs.jsonl import read_jsonl
from rlhf_core.trainers.online.config import AdaptiveSampling

ADAPTIVE = {"k_success": 2, "k_failure": 1, "max_completions": 10, "chunk_size": 4}
BASE = {
    "trainer": {
        "name": "grpo",
        "steps": 3,
        "rollout_batch_size": 32,
        "group_size": 4,
        "eval_samples": 2,
        "checkpoint_every": 1,
        "keep_checkpoints": 9,
        "adaptive_sampling": ADAPTIVE,
    },
    "reward": {"name": "verifier", "workers": 1},
    "dataset": {"name": "pocket", "subset": "arithmetic"},
}


def changed(**trainer: Any) -> dict[str, Any]:
    return {**BASE, "trainer": {**BASE["trainer"], **trainer}}  # type: ignore[dict-item]


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


def test_the_first_chunk_is_that_of_fixed_groups(train: Any, tmp_path: Path) -> None:
    train(changed(steps=1), run="run")
    train(changed(steps=1, adaptive_sampling=None), run="fixed")
    first, fixed = ([[c["text"] for c in r["completions"][:4]] for r in rows(tmp_path / n)] for n in ("run", "fixed"))
    assert first == fixed


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


@pytest.mark.slow
def test_two_processes_draw_what_one_does(tmp_path: Path) -> None:
    options = [
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        "pocket/arithmetic",
        "--set",
        "threads=1",
        *(
            w
            for s in (
                "steps=1",
                "rollout_batch_size=24",
                "group_size=4",
                "eval_samples=2",
                "optimizer.eps=1e-3",
                f"adaptive_sampling={json.dumps(ADAPTIVE)}",
            )
            for w in ("--set", f"trainer.{s}")
        ),
    ]
    for n in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "rlhf_core.cli.main",
            "train",
            *options,
            "--nproc",
            n,
            "--run-dir",
            str(tmp_path / n),
        ]
        subprocess.run(command, check=True, timeout=250, capture_output=True)
    one, two = (
        [(r["prompt_id"], [c["text"] for c in r["completions"]]) for r in rows(tmp_path / n)] for n in ("1", "2")
    )
    assert one == two
    a, b = (load_file(tmp_path / n / "final" / "model.safetensors") for n in ("1", "2"))
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-6


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"k_success": 4, "k_failure": 4, "max_completions": 7}, "cannot hold 4 successes and 4 failures"),
        ({"chunk_size": 9, "max_completions": 8}, "chunk_size 9 is more than max_completions 8"),
        ({"k_success": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_met(settings: dict[str, int], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AdaptiveSampling(**settings)


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

"""Passes over the data become steps of the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_core


@pytest.fixture
def plan(tmp_path: Path, capsys: Any) -> Callable[..., Any]:
    """What a dry run plans, or its error, for a file of 30 prompts, of which 24 are trained on."""
    from rlhf_core.cli.main import main

    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(30))
    )

    def call(algo: str, *settings: str) -> Any:
        words = [w for s in ("dataset.heldout_fraction=0.2", *settings) for w in ("--set", s)]
        run = ["train", "--algo", algo, "--reward", "verifier", "--dataset", str(rows), *words]
        with pytest.raises(SystemExit) as caught:
            main([*run, "--dry-run", "--json"])
        out, err = capsys.readouterr()
        return json.loads(out) if caught.value.code == 0 else err

    return call


SIZES = ("trainer.rollout_batch_size=16", "trainer.group_size=4")


@pytest.mark.parametrize(("epochs", "passes"), [(1, 1), (0.5, 0.5), (3, 3)])
def test_the_plan_says_the_steps_whatever_the_recipe_says(
    plan: Callable[..., Any], epochs: float, passes: float
) -> None:
    planned = plan("grpo", *SIZES, f"trainer.epochs={epochs}")
    rows = sum(size["train"] for size in planned["rows"].values())
    assert planned["config"]["trainer"]["steps"] == -(-int(passes * rows) // 4)
    assert planned["config"]["trainer"]["epochs"] is None


def test_an_iteration_of_several_rollout_batches_is_a_step(plan: Callable[..., Any]) -> None:
    planned = plan("iterative_dpo", *SIZES, "trainer.rollout_batches=3", "trainer.epochs=2")
    rows = sum(size["train"] for size in planned["rows"].values())
    assert planned["config"]["trainer"]["steps"] == -(-2 * rows // 12)


def test_a_batch_that_is_read_twice_makes_two_steps(plan: Callable[..., Any]) -> None:
    reads = ("trainer.rollouts.max_reads=2", "trainer.rollouts.max_staleness=1")
    planned = plan("grpo", *SIZES, *reads, "trainer.epochs=2")
    rows = sum(size["train"] for size in planned["rows"].values())
    assert planned["config"]["trainer"]["steps"] == 2 * -(-2 * rows // 4)


def test_steps_and_epochs_are_refused(plan: Callable[..., Any]) -> None:
    said = plan("grpo", "trainer.epochs=1", "trainer.steps=4")
    assert "trainer.epochs 1 and trainer.steps 4 cannot both be given" in said


def test_a_run_makes_that_many_steps_and_is_not_extended_by_epochs(tmp_path: Path) -> None:
    sizes = {"rollout_batch_size": 16, "group_size": 2, "sampling": {"max_tokens": 2}, "eval_samples": 0}
    run = rlhf_core.train(
        "grpo",
        dataset=[{"prompt": f"What is {n} + 1?"} for n in range(20)],
        reward=lambda samples: [float(n % 2) for n, _ in enumerate(samples)],
        settings={"trainer.epochs": 1, "trainer": sizes, "threads": 1},
        run_dir=tmp_path / "run",
        progress=False,
    )
    assert run.summary["steps"] == 3
    with pytest.raises(rlhf_core.config.ConfigError, match="a run that goes on has its steps"):
        run.resume(settings={"trainer.epochs": 2})

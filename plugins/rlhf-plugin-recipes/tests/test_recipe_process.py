"""A recipe as a user runs it: stages in processes of their own, Ctrl-C in the middle, and the shipped recipes whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

RLHF = [sys.executable, "-m", "rlhf_core.cli.main"]
SMALL = {
    "three_stage": {
        "vars.sft_steps": 2,
        "vars.pairs": 32,
        "vars.steps": 6,
        "vars.prompts": 8,
        "stages.reward.set.heldout_pairs": 16,
        "stages.reward.set.members": 2,
        "stages.policy.trainer.rollout_batch_size": 16,
        "stages.policy.trainer.eval_samples": 4,
        "stages.policy.trainer.checkpoint_every": 1,
    },
    "verifier_curriculum": {"vars.steps": 2, "vars.rollouts": 16, "vars.tries": 2, "vars.limit": 16, "vars.low": 0.01},
    "reward_flywheel": {
        "vars.sft_steps": 2,
        "vars.count": 24,
        "vars.answers": 3,
        "vars.reward_steps": 2,
        "vars.steps": 1,
        "vars.prompts": 8,
        "stages.policy.trainer.rollout_batch_size": 16,
        "stages.new_policy.trainer.rollout_batch_size": 16,
    },
}


def words(name: str) -> list[str]:
    return [*RLHF, "recipe", "run", name, *(w for k, v in SMALL[name].items() for w in ("--set", f"{k}={v}"))]


def statuses(root: Path) -> dict[str, str]:
    return {row["stage"]: row["status"] for row in summary(root)["stages"]}


def summary(root: Path) -> dict[str, Any]:
    return json.loads((root / "summary.json").read_text())


@pytest.mark.slow
def test_a_stage_says_what_it_does_and_its_exit_code_is_the_recipes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "What is 2 + 2?", "completion": "4"}\n')
    (tmp_path / "r.yaml").write_text("stages: {s: {kind: score, reward: verifier, input: a.jsonl}}\n")
    ran = subprocess.run([*RLHF, "recipe", "run", "r.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "has no reference answers" in ran.stderr
    assert "stage 's' failed with exit code 2" in ran.stderr
    assert "has no reference answers" in next(tmp_path.glob("runs/recipes/r/s-*/stage.log")).read_text()
    assert statuses(tmp_path / "runs/recipes/r") == {"s": "failed"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_saves_the_running_stage_and_the_same_command_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "runs/recipes/three_stage"
    said = tmp_path / "said.txt"
    with said.open("wb") as file:
        process = subprocess.Popen(words("three_stage"), cwd=tmp_path, stderr=file)
        try:

            def saved() -> bool:
                assert process.poll() is None, said.read_text()
                return bool(list(root.glob("policy-*/checkpoints/step-*")))

            wait_for(saved, "a checkpoint of the last stage", 600)
            process.send_signal(signal.SIGTERM)  # as Ctrl-C, which a shell's background processes ignore
            assert process.wait() == 130, said.read_text()
        finally:
            process.terminate()
            process.wait()
    assert statuses(root) == {"sft": "done", "reward": "done", "policy": "interrupted", "eval": "waiting"}
    again = subprocess.run(words("three_stage"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert statuses(root) == {"sft": "cached", "reward": "cached", "policy": "done", "eval": "done"}
    assert "goes on" in again.stderr
    run = next(root.glob("policy-*"))
    steps = [
        json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines() if "grad_norm" in line
    ]
    assert steps == [1, 2, 3, 4, 5, 6], "resumed, not begun again"
    assert (root / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.long  # three_stage, above, is a shipped one and runs whole too
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["verifier_curriculum", "reward_flywheel"])
def test_a_shipped_recipe_runs_whole(tmp_path: Path, name: str) -> None:
    ran = subprocess.run(words(name), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    root = tmp_path / "runs/recipes" / name
    assert set(statuses(root).values()) == {"done"}
    assert summary(root)["stages"][-1]["figures"]

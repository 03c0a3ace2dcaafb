"""A run goes on with another strategy: DDP, FSDP and one process read each other's checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.resume.runs import train as train_here

from .test_resharding import apart, settings, train, weights

CHANGES = [("fsdp", 2, 4), ("single", 1, 6), ("ddp", 2, 8)]
"""(Strategy, processes, steps then)."""


@pytest.mark.long
@pytest.mark.slow
def test_ppo_goes_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    run, plain, length = tmp_path / "run", tmp_path / "plain", "trainer.steps"
    small = settings(rollout_batch_size=8, train_batch_size=8, group_size=2, eval_samples=0)
    small += ["--set", "trainer.sampling.max_tokens=8", "--set", "reward.workers=1"]
    begin = ["--algo", "ppo", "--reward", "verifier", "--dataset", "pocket/arithmetic", *small]
    assert train_here(*begin, "--run-dir", str(plain), "--set", f"{length}={CHANGES[-1][2]}") == 0
    assert train_here(*begin, "--run-dir", str(run), "--set", f"{length}=2") == 0
    for strategy, ranks, steps in CHANGES:
        words = ["--resume", str(run), "--nproc", str(ranks), "--set", f"strategy={strategy}"]
        said = train(*words, "--set", f"{length}={steps}")
        assert f"-> {strategy}" in said
    assert apart(weights(run), weights(plain)) < 5e-5
    names = [row["changes"]["strategy.name"][1] for row in json.loads((run / "plan.json").read_text())["extensions"]]
    assert names == [strategy for strategy, _, _ in CHANGES]

"""`rlhf train` whose completions go on with new weights: what the run's files say, and what the loss is given."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SETTINGS = (
    "threads=1", "trainer.steps=3", "trainer.group_size=4", "trainer.rollout_batch_size=16", "trainer.eval_samples=0",
    "trainer.gold_samples=0", "trainer.checkpoint_every=0", "trainer.rollouts.max_staleness=1",
    "trainer.sampling.max_tokens=16", "trainer.optimizer.learning_rate=0.003", "trainer.trace_prompts=4",
    "trainer.drop_constant_groups=false", "trainer.optimizer.warmup_steps=0", "trainer.entropy_coefficient=0.1",
    "rollout.name=vllm", "rollout.in_flight=true",
)  # fmt: skip
CANARY = range(1000, 1008)


class HalfSampled:
    """Completions after the first batch wait at their half for new weights, which wait for all of a batch to be there.

    Args:
        server: it is told.
        batch: completions of a batch.
        batches: in all.
    """

    def __init__(self, server: Any, batch: int, batches: int) -> None:
        self.batch, self.most, self.seen, self.updates = batch, batch * batches, 0, 0
        self.there = threading.Condition()
        server.hold, server.fault = self.hold, self.pause

    def hold(self, body: Any) -> float:
        if body["sampling_params"]["seed"] in CANARY:
            return 0.0
        with self.there:
            self.seen += 1
            self.there.notify_all()
            return 200.0 if self.seen > self.batch else 0.0

    def pause(self, path: str, body: Any) -> None:
        with self.there:
            if path == "/pause" and self.seen:
                self.updates += 1
                wanted = min(self.most, self.batch * (self.updates + 1))
                assert self.there.wait_for(lambda: self.seen >= wanted, 120), f"{self.seen} of {wanted}"


def train(url: str, run: Path) -> None:
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--run-dir", str(run)]
    words += [word for setting in (*SETTINGS, f"rollout.urls=[{url}]") for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr


def completions(run: Path) -> dict[int, list[Any]]:
    """Of each step, from the trace."""
    rows = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    prompts = [row for row in rows if row.get("event") == "prompt"]
    return {step: [c for row in prompts if row["step"] == step for c in row["completions"]] for step in (1, 2, 3)}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(560)
def test_a_run_records_who_sampled_which_token_and_corrects_each_token_by_its_own_logprob(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Step k begins with version k - 1; its batch was asked for when that was k - 2, and is half sampled then."""
    server = serve()
    HalfSampled(server, 16, 3)
    run = tmp_path / "run"
    train(server.url, run)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = completions(run)
    assert all(c["versions"] == [[0, c["tokens"], 0]] for c in steps[1])
    for step in (2, 3):
        now, ages, gaps = step - 1, [], {step - 2: [], step - 1: []}
        for completion in steps[step]:
            versions = completion["versions"]
            assert [v for _, _, v in versions] == [now - 1, now][: min(2, completion["tokens"])]
            assert completion["policy_version"] == now - 1
            gap_T = np.abs(np.array(completion["logprobs"]) - np.array(completion["trainer_logprobs"]))
            for start, end, version in versions:
                ages += [now - version] * (end - start)
                gaps[version] += gap_T[start:end].tolist()
        assert max(gaps[now]) < 1e-4 < np.mean(gaps[now - 1]), (
            "tokens of the newest weights have the trainer's logprobs"
        )
        assert metrics[step - 1]["staleness/mean"] == pytest.approx(np.mean(ages), abs=1e-5)
        assert metrics[step - 1]["staleness/max"] == 1
    summary, plan = (json.loads((run / name).read_text()) for name in ("summary.json", "plan.json"))
    for file in (summary, plan):
        assert "not exactly reproducible" in file["conditions"]["rollout vllm"]["in_flight"]
    several = sum(len(c["versions"]) > 1 for step in steps.values() for c in step)
    assert summary["reports"]["vllm"]["in_flight"] == {"completions": 48, "of_several_versions": several}
    assert "not exactly reproducible" in (run / "final" / "README.md").read_text()

"""Servers that are given by address stay when the trainer is killed, and the resumed run goes on with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

SETTINGS = (
    "threads=1", "dataset.limit=64", "trainer.steps=3", "trainer.group_size=4", "trainer.rollout_batch_size=8",
    "trainer.eval_samples=0", "trainer.checkpoint_every=1", "trainer.sampling.max_tokens=8",
    "trainer.sampling.temperature=1.5", "trainer.optimizer.learning_rate=0.001", "trainer.optimizer.warmup_steps=0",
    "rollout.name=vllm", "reward.mode=continuous", "reward.length={max: 1, zero_at: 9}",
)  # fmt: skip


def words(url: str, run: Path) -> list[str]:
    settings = [word for setting in (*SETTINGS, f"rollout.urls=[{url}]") for word in ("--set", setting)]
    chosen = ["--algo", "grpo", "--reward", "programmatic", "--dataset", "pocket/arithmetic"]
    return ["train", *chosen, *settings, "--run-dir", str(run)]


@pytest.mark.slow
def test_servers_given_by_address_outlive_a_killed_trainer(
    serve: Callable[..., Any], call: Callable[..., Any], tmp_path: Path
) -> None:
    server, whole, run = serve(), tmp_path / "whole", tmp_path / "run"
    assert call(*words(server.url, whole)).code == 0
    rows = map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())
    assert min(row["grad_norm"] for row in rows if "grad_norm" in row) > 0, "every step changes the weights"
    command = [sys.executable, "-m", "rlhf_core.cli.main", *words(server.url, run)]
    loads: list[int] = []

    def kill_at_the_third_weights(path: str, body: Any) -> None:
        if path == "/collective_rpc" and body["method"] == "rlhf_load":
            loads.append(trainer.pid)
            if len(loads) == 3:
                os.kill(trainer.pid, signal.SIGKILL)

    server.fault = kill_at_the_third_weights
    trainer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, said = trainer.communicate(timeout=200)
    assert trainer.returncode == -signal.SIGKILL, said
    assert not (run / "final").exists()
    assert server.paused, "it was about to get new weights"
    assert httpx.get(f"{server.url}/version").json() == {"version": server.version}
    server.fault, before = None, len(server.calls)
    resumed = call("train", "--resume", run)
    assert resumed.code == 0, resumed.err
    assert server.calls[before:].count("/inference/v1/generate") >= 8
    assert not server.paused
    one, two = (load_file(folder / "final" / "model.safetensors") for folder in (whole, run))
    assert one.keys() == two.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, two[name])] == []

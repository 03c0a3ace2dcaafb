"""rlhf-plugin-fsdp on two ranks equals one process: gradients, forwards on shards, weights read by slices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "fsdp.py"


@pytest.mark.slow
@pytest.mark.timeout(560)
@pytest.mark.parametrize("extent", ["brief", pytest.param("all", marks=pytest.mark.long)])
def test_shards_equal_one_process(extent: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(out), extent], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(out.read_text())
    every = extent == "all"
    assert len(found["gradients"]) == (9 if every else 3)
    assert max(found["gradients"].values()) < 1e-5
    assert len(found["policies"]) == (20 if every else 4), (
        "five kinds of training, with LoRA too, of five samples and two, and seven and none"
    )
    assert max(found["policies"].values()) < 1e-5, found["policies"]
    check_references(found["references"])
    assert len(found["rewards"]) == (12 if every else 4)
    assert max(found["rewards"].values()) < 1e-5, found["rewards"]
    assert max(found["forwards"].values()) < 2e-5
    assert max(found["sampled alone"].values()) < 1e-5, "ranks that sample different numbers of prompts learn alike"
    for kind in ("full", "lora") if every else ("lora",):
        numbers = {k.partition("/")[2]: v for k, v in found["loading"].items() if k.startswith(f"{kind}/")}
        assert numbers["loaded unlike"] == 0, "bit for bit what one process loads"
        assert numbers["reference"] < 1e-5
        assert numbers["held"] < 0.55
        assert numbers["moved"] > 1e-4
        assert numbers["after"] < 1e-5


def check_references(found: dict[str, float]) -> None:
    """Logprobs under one reference, whatever is kept of it, while the policy beside it has moved on."""
    moved = {name: gap for name, gap in found.items() if name.startswith("moved")}
    gaps = {name: gap for name, gap in found.items() if name not in moved}
    assert len(moved) == 5
    assert min(moved.values()) > 0.1, moved
    assert len(gaps) == 11
    assert max(gaps.values()) < 1e-6, gaps


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(560)
def test_iterative_dpo_learns_alike_from_shards_and_from_whole_weights(tmp_path: Path) -> None:
    """Pairs that each rank collects, the buffer of rank 0, and a reference that is synced shard by shard."""
    whole, shards = (trained(tmp_path / strategy, strategy) for strategy in ("ddp", "fsdp"))
    assert sum("reference_synced" in row for row in whole) == 2
    losses = [row["loss"] for row in whole if "loss" in row]
    assert losses[1] < losses[0] - 1e-4, "it learns"
    assert len(losses) == 4
    for row, of_shards in zip(whole, shards, strict=True):
        assert of_shards == pytest.approx(row, abs=1e-5)


def trained(folder: Path, strategy: str) -> list[dict[str, float]]:
    """Metrics of two iterations on two ranks, without times."""
    settings = (
        f"strategy={strategy}",
        "trainer.steps=2",
        "trainer.rollout_batch_size=16",
        "trainer.rollout_batches=1",
        "trainer.updates=2",
        "trainer.buffer=rolling",
        "trainer.pair_batch_size=6",
        "trainer.eval_samples=0",
        "trainer.sampling.max_tokens=8",
        "trainer.kl.sync_every=1",
        "trainer.precision=fp32",
        "trainer.optimizer.learning_rate=1e-4",
    )
    words = [word for setting in settings for word in ("--set", setting)]
    command = ["train", "--algo", "iterative_dpo", "--dataset", "pocket/arithmetic", "--reward", "verifier"]
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_core.cli.main", *command, "--nproc", "2", "--run-dir", str(folder), *words],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if isinstance(v, float) and "second" not in k} for row in rows]

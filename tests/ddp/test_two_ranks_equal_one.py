"""Two gloo ranks compute what one process computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rlhf_plugin_pocket import weights_path
from tests.resume.runs import train as train_here

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
TINY = [
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "reward.workers=1",
    "--set",
    "dataset.limit=64",
    "--set",
    "trainer.steps=2",
    "--set",
    "trainer.rollout_batch_size=32",
    "--set",
    "trainer.eval_samples=5",
    "--set",
    "trainer.micro_batch_size=4",
]


def weights(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Final weights of a run on one process, and of the same on two."""
    assert train_here(*arguments, "--run-dir", str(tmp_path / "1")) == 0
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *arguments, "--nproc", "2"]
    subprocess.run([*command, "--run-dir", str(tmp_path / "2")], env=ENV, check=True, timeout=250, capture_output=True)
    return [load_file(str(tmp_path / n / "final" / "model.safetensors")) for n in ("1", "2")]


@pytest.mark.slow
def test_several_updates_of_a_rollout_batch_on_two_processes_equal_those_of_one(tmp_path: Path) -> None:
    """The same groups are in the same batches; four small steps, so that rounding does not show in Adam's sign."""
    a, b = weights(
        tmp_path,
        *TINY,
        "--set",
        "trainer.steps=1",
        "--set",
        "trainer.rollout_batch_size=32",
        "--set",
        "trainer.train_batch_size=16",
        "--set",
        "trainer.epochs_per_rollout_batch=2",
        "--set",
        "trainer.optimizer.eps=1e-3",
    )
    moved = load_file(str(weights_path() / "model.safetensors"))
    assert max(float((a[k] - moved[k]).abs().max()) for k in a) > 1e-4
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-6
    rows = [[json.loads(line) for line in (tmp_path / n / "metrics.jsonl").open()][1] for n in ("1", "2")]
    for name in ("loss", "kl", "entropy", "clip_fraction", "grad_norm", "importance_ratio"):
        assert rows[0][name] == pytest.approx(rows[1][name], abs=1e-6), name
    texts = [[json.loads(line)["completion"] for line in (tmp_path / n / "samples.jsonl").open()] for n in ("1", "2")]
    assert texts[0] == texts[1]
    assert json.loads((tmp_path / "2" / "plan.json").read_text())["world_size"] == 2


@pytest.mark.long
def test_groups_shared_out_by_work_make_the_update_of_one_process(tmp_path: Path) -> None:
    """Micro-batches by tokens: ranks swap groups until each has as much to compute."""
    a, b = weights(
        tmp_path,
        *TINY,
        "--set",
        "trainer.steps=1",
        "--set",
        "trainer.micro_batch_tokens=150",
        "--set",
        "trainer.optimizer.eps=1e-3",
    )
    moved = load_file(str(weights_path() / "model.safetensors"))
    assert max(float((a[k] - moved[k]).abs().max()) for k in a) > 1e-5
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-6


def test_a_launcher_that_starts_fewer_processes_is_refused() -> None:
    from rlhf_core.distributed.accelerated import AcceleratedStrategy
    from rlhf_core.types.errors import RlhfError

    with pytest.raises(RlhfError, match=r"wants 2 processes but the launcher started 1"):
        AcceleratedStrategy(2)

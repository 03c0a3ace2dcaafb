"""Adapters on a base of 4 bits: two ranks with FSDP learn what one process learns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.families.conftest import saved as saved
from tests.families.conftest import tokenizer as tokenizer

pytest.importorskip("bitsandbytes")


RUNS = {
    "sft": ("dataset=pocket/assistant", "trainer.max_steps=3", "trainer.batch_size=8"),
    "grpo": (
        "dataset=pocket/arithmetic", "trainer.steps=3", "trainer.rollout_batch_size=8", "trainer.group_size=4",
        "trainer.sampling.max_tokens=8", "trainer.kl.coefficient=0.05", "reward=programmatic", "reward.length=null",
        "reward.hollow=null", "reward.checks={vowel: {pattern: '[aeiou]'}}", "trainer.eval_samples=0",
        "trainer.gold_samples=0",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", RUNS)
def test_adapters_are_divided_and_learn_as_in_one_process(
    saved: Callable[..., Path], tmp_path: Path, algorithm: str
) -> None:
    model = saved("llama", hidden_size=64, intermediate_size=128, head_dim=16, max_position_embeddings=512)
    settings = (*RUNS[algorithm], "trainer.optimizer.eps=1e-3", "threads=1")
    settings += ("model.quantize=nf4", "model.lora.r=4", "trainer.optimizer.learning_rate=0.01")
    for strategy, ranks in (("single", 1), ("fsdp", 2)):
        words = [word for s in (*settings, f"strategy={strategy}") for word in ("--set", s)]
        command = [sys.executable, "-m", "rlhf_core.cli.main", "train", "--algo", algorithm, "--model", str(model)]
        command += [*words, "--nproc", str(ranks), "--run-dir"]
        done = subprocess.run([*command, str(tmp_path / strategy)], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-4000:]
    names = ("final/model.safetensors", "final/adapter/adapter_model.safetensors")
    for one, two in ([load_file(tmp_path / run / name) for run in ("single", "fsdp")] for name in names):
        assert one.keys() == two.keys()
        assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    moved = load_file(tmp_path / "fsdp" / names[1])
    assert max(float(weight.abs().max()) for name, weight in moved.items() if "lora_B" in name) > 1e-3

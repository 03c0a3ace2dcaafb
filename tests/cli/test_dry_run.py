"""`rlhf train --dry-run` looks at models and data, says what the run would do, and does nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_pocket import weights_path

Rlhf = Callable[..., Any]
STEPS = "trainer.steps=20"
NO_NETWORK = """
import os, socket

def refuse(*given, **named):
    open(os.environ["CONNECTED"], "a").write(f"{given}\\n")
    raise OSError("the network is forbidden here")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""
MODEL, DATA = "nobody-of-that-name/no-such-model", "nobody-of-that-name/no-such-data"
HUB_REWARD = f"reward={{name: bradley_terry, path: {MODEL}}}"
MIXTURE = (
    "dataset={sources: [{source: {name: pocket, subset: arithmetic}}, "
    f"{{source: {{name: hub, path: {DATA}}}, reward: {{name: verifier}}}}]}}"
)
FEW = ("--set", "dataset.limit=64")
"""Reading and encoding all rows takes longer than everything else."""
RUNS = {
    "model": (["--algo", "grpo", "--model", MODEL], MODEL),
    "data": (["--algo", "grpo", "--reward", "verifier", "--dataset", DATA], DATA),
    "mixture": (["--algo", "grpo", "--set", "reward={name: verifier}", "--set", MIXTURE], DATA),
    "reward": (["--algo", "grpo", "--set", HUB_REWARD], MODEL),
    "data of sft": (["--algo", "sft", "--dataset", DATA], DATA),
    "model of a reward model": (["--algo", "reward_model", "--model", MODEL, "--nproc", "2"], MODEL),
    "here": (["--algo", "grpo", "--reward", "ensemble", *FEW], ""),
}
"""Options, and what is not there."""


@pytest.mark.slow
@pytest.mark.parametrize("run", ["here", pytest.param("model", marks=pytest.mark.long)])
def test_nothing_but_looking(run: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    here = tmp_path / "here"
    here.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "CONNECTED": str(tmp_path / "connected"),
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(here / "hf"),
        "RLHF_CACHE": str(here / "cache"),
        "RLHF_HOME": str(here / "home"),
    }
    options, missing = RUNS[run]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *options, "--dry-run", "--json"]
    out = subprocess.run(command, env=env, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    if missing:
        assert out.returncode == 2
        assert missing in out.stderr
        assert (tmp_path / "connected").exists()
        return
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)["components"]
    assert not (tmp_path / "connected").exists(), (tmp_path / "connected").read_text()
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("run", sorted(set(RUNS) - {"here"}))
def test_what_does_not_exist_is_refused(run: str, rlhf: Rlhf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options, missing = RUNS[run]
    out = rlhf("train", *options, "--dry-run")
    assert out.code == 2
    assert missing in out.err
    assert "in order" not in out.out


def lines(rlhf: Rlhf, *options: object) -> dict[str, str]:
    """What is said of the run, by its labels."""
    out = rlhf("train", *options, "--dry-run")
    assert out.code == 0, out.err
    label, said = "", dict[str, str]()
    for line in out.out.splitlines():
        label = line[:10].strip() or label
        said[label] = f"{said.get(label, '')} {line[10:].strip()}".strip()
    return {**said, "all": out.out}


def test_what_is_said(rlhf: Rlhf) -> None:
    said = lines(rlhf, "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--set", STEPS)
    parameters = 1_373_600
    assert f"{parameters / 1e6:.3g} M parameters in float32, all trained; context 256 tokens" in said["model"]
    assert "pocket/arithmetic: 533 rows to train on, 139 held out" in said["data"]
    assert "tokens on average" in said["data"]
    batch, length = 256, 48
    assert said["steps"].startswith("20, each of 32 prompts x 8 completions and 1 update")
    assert f"at most {20 * batch * length:,} sampled ({length} per completion)" in said["tokens"]
    for part in ("weights 5.49 MB", "gradients 5.49 MB", "optimizer 11 MB", "reference 5.49 MB", "logits", "estimate"):
        assert part in said["memory"]
    assert "trainer.steps = 20  (--set; default 40)" in said["all"]
    assert "1 setting differs from the default" in said["all"]
    assert "recipe of algorithm grpo for pocket:" in said["all"]


def test_adapters_need_no_copy_and_few_gradients(rlhf: Rlhf) -> None:
    said = lines(rlhf, "--algo", "grpo", "--set", "model.lora.r=4", *FEW)
    assert "of them trained" in said["model"]
    assert "reference" not in said["memory"]
    assert "model.lora.r = 4  (--set)" in said["all"]


def test_steps_of_offline_runs_are_those_that_the_run_makes(rlhf: Rlhf, tmp_path: Path) -> None:
    options = ("--algo", "sft", "--set", "dataset.limit=100", "--set", "trainer.batch_size=16")
    planned = int(lines(rlhf, *options)["steps"].split(",")[0])
    out = rlhf("train", *options, "--set", "trainer.eval_samples=0", "--run-dir", tmp_path / "run", "--json")
    assert json.loads(out.out)["steps"] == planned


@pytest.mark.parametrize("algo", ["dpo", "reward_model", "kto", "iterative_dpo", "prm"])
def test_every_kind_of_run(rlhf: Rlhf, algo: str) -> None:
    said = lines(rlhf, "--algo", algo, *FEW)
    assert {"algorithm", "model", "data", "steps", "tokens", "memory"} <= said.keys()
    assert ("logits" in said["memory"]) == (algo not in ("reward_model", "prm"))


def test_weights_of_another_shape_are_refused_unread(rlhf: Rlhf, tmp_path: Path) -> None:
    shutil.copytree(weights_path(), tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "intermediate_size": 500}))
    out = rlhf("train", "--algo", "sft", "--model", tmp_path / "model", *FEW, "--dry-run")
    assert out.code == 2
    assert "has shape [" in out.err
    assert "but config.json describes [" in out.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "./none"), "no model folder './none'"),
        (("--set", "dataset.max_prompt_tokens=3", *FEW), "are longer than 3 tokens"),
        (("--dataset", "empty.jsonl"), "empty.jsonl"),
        (
            ("--reward", "verifier", "--dataset", "rows.jsonl", "--set", "dataset.heldout_fraction=0"),
            "has no reference answers",
        ),
    ],
)
def test_what_the_run_would_refuse_is_refused(rlhf: Rlhf, options: tuple[str, ...], said: str) -> None:
    Path("empty.jsonl").write_text("")
    Path("rows.jsonl").write_text('{"prompt": "2 + 2?"}\n{"prompt": "3 + 3?"}\n')
    out = rlhf("train", "--algo", "grpo", *options, "--dry-run")
    assert out.code == 2
    assert said in out.err

"""A sharded strategy from outside, and FSDP, train, save and resume; no trainer knows either."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.resume.runs import train as train_here

CODE = Path(__file__).parents[1] / "fixtures" / "acme_sharded" / "acme_sharded.py"
COMMON = ["--set", "threads=1", "--set", "trainer.optimizer.learning_rate=1e-3", "--set", "trainer.micro_batch_size=4"]
GRPO = [
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
    "trainer.kl.coefficient=0",  # groups of equal scores teach nothing: no step of Adam along rounding alone
    "--set",
    "trainer.steps=2",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.eval_samples=5",
    "--set",
    "trainer.checkpoint_every=1",
    "--set",
    "trainer.epochs_per_rollout_batch=2",
    "--set",
    "trainer.kl.track=true",
    *COMMON,
]


OFFLINE = [
    "--set",
    "trainer.max_steps=3",
    "--set",
    "trainer.batch_size=8",
    "--set",
    "dataset.heldout_by=place",
    *COMMON,
]
STRATEGIES = ("acme_sharded", "fsdp")
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Runs `rlhf train` once for each set of arguments; two ranks where the distribution acme-sharded is installed."""
    place = tmp_path_factory.mktemp("sharded")
    info = place / "acme_sharded-1.0.dist-info"
    info.mkdir()
    shutil.copy(CODE, place)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-sharded\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.strategy]\nacme_sharded = acme_sharded:ShardedConfig\n")
    env = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "RLHF_HOME": str(place / "home")}

    @functools.cache
    def run(*args: str) -> Path:
        folder = place / f"run-{uuid.uuid4().hex}"
        if not {"--nproc", "--resume"} & set(args):
            assert train_here(*args, "--run-dir", str(folder)) == 0
            return folder
        where = [] if "--resume" in args else ["--run-dir", str(folder)]
        command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *args, *where]
        done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return folder

    return run


def on_two_ranks(strategy: str) -> list[str]:
    return ["--nproc", "2", "--set", f"strategy={strategy}"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(str(run / "final" / "model.safetensors"))


def distance(one: Path, two: Path) -> float:
    a, b = weights(one), weights(two)
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param("acme_sharded", marks=pytest.mark.long), "fsdp"])
def test_grpo_equals_one_process(train: Train, strategy: str) -> None:
    one, two = train(*GRPO), train(*GRPO, *on_two_ranks(strategy))
    first = json.loads((two / "plan.json").read_text())
    assert first["config"]["strategy"]["name"] == strategy
    assert distance(one, two) < 1e-4
    texts = [[json.loads(line)["completion"] for line in (run / "samples.jsonl").open()] for run in (one, two)]
    assert texts[0] == texts[1]
    saved = two / "checkpoints" / "step-000001"
    shards = [load_file(str(saved / f"shard-{rank}.safetensors")) for rank in range(2)]
    whole = sum(t.numel() for t in weights(two).values())
    for shard in shards:
        held = sum(t.numel() for t in shard.values() if t.numel() > 1)
        assert held < 1.5 * whole, "half of the two moments of every weight"


@pytest.mark.slow
@pytest.mark.long  # with fsdp: test_killed_ranks.py
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_grpo_resumes(train: Train, tmp_path: Path, strategy: str) -> None:
    two, again = train(*GRPO, *on_two_ranks(strategy)), tmp_path / "again"
    shutil.copytree(two, again)
    shutil.rmtree(again / "checkpoints" / "step-000002")
    (again / "summary.json").unlink()
    train("--resume", str(again))
    assert all(torch.equal(weights(two)[k], v) for k, v in weights(again).items())
    rows = [
        [{k: v for k, v in json.loads(line).items() if k != "time"} for line in (run / "metrics.jsonl").open()]
        for run in (two, again)
    ]
    assert rows[0] == rows[1]


@pytest.mark.long
@pytest.mark.slow
def test_adapters_of_a_sharded_policy_are_merged_whole(train: Train) -> None:
    # Adam with a large epsilon: else a gradient of rounding alone moves an adapter by a whole step
    lora = ["--set", "model.lora.r=4", "--set", "trainer.optimizer.eps=1e-3"]
    assert distance(train(*GRPO, *lora), train(*GRPO, *lora, *on_two_ranks("acme_sharded"))) < 1e-4


@pytest.mark.slow
@pytest.mark.long  # dpo with fsdp: test_offline_slices.py; a strategy from outside: above
@pytest.mark.parametrize(
    ("algo", "strategy"),
    [("sft", "acme_sharded"), ("dpo", "fsdp")],
)
def test_offline_equals_one_process(train: Train, pairs: Path, algo: str, strategy: str) -> None:
    common = ["--algo", algo, "--dataset", str(pairs), *OFFLINE]
    one, two = train(*common), train(*common, *on_two_ranks(strategy))
    assert distance(one, two) < 1e-4
    after = [json.loads((run / "summary.json").read_text())["evaluation_after"]["eval/loss"] for run in (one, two)]
    assert after[0] == pytest.approx(after[1], rel=1e-3)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {
            "prompt": f"What is the code of {n}?",
            "completion": f"The code is {n}.",
            "chosen": f"The code is {n}.",
            "rejected": "I do not know.",
        }
        for n in ("Ann", "Bob", "Cleo", "Dan", "Eve")
    ] * 8
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data

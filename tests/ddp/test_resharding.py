"""A run goes on with another number of processes than wrote its checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from rlhf_core.distributed.whole_weights import read_stored, take_out, write_sharded
from rlhf_core.runs.checkpoint import CheckpointStore, for_ranks
from rlhf_core.training.rollout_batch import RolloutBatch
from rlhf_core.types.errors import RunDirError
from rlhf_core.types.rollouts import FinishReason, Prompt, PromptGroup, Rollout, Score
from rlhf_core.types.tree import SHARDED, Stored, load_tree, save_tree
from rlhf_plugin_pocket import weights_path
from rlhf_plugin_schedule.buffered_source import reshard_batch
from tests.resume.runs import cut_back
from tests.resume.runs import train as train_here

from . import resharding
from .test_two_launchers import free_port

Command = Callable[..., tuple[int, str]]
PARTS = Path(resharding.__file__)


def test_a_state_comes_back_without_ranks(tmp_path: Path) -> None:
    """Written by parts on one rank, read whole in a process that knows no ranks."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore
    try:
        mesh, whole = init_device_mesh("cpu", (1,)), torch.arange(35.0).reshape(5, 7)
        state = {"optimizer": {"state": {3: {"exp_avg": distribute_tensor(whole, mesh, [Shard(0)]), "step": 4.0}}}}
        kept, tensors = take_out(state)
        assert list(tensors) == ["optimizer/state/3/exp_avg"]
        assert all(isinstance(t, DTensor) for t in tensors.values())
        save_tree(tmp_path, "shard-0", kept)
        write_sharded(tmp_path / SHARDED, tensors)
    finally:
        dist.destroy_process_group()
    read = load_tree(tmp_path, "shard-0")
    stored = read["optimizer"]["state"][3]["exp_avg"]
    assert stored == Stored("optimizer/state/3/exp_avg", tmp_path / SHARDED)
    filled = read_stored(read, lambda _: torch.empty(5, 7))
    assert torch.equal(filled["optimizer"]["state"][3]["exp_avg"], whole)
    assert filled["optimizer"]["state"][3]["step"] == 4.0
    (file,) = (tmp_path / SHARDED).iterdir()
    file.unlink()
    with pytest.raises(OSError, match=r"reading .*sharded failed"):
        read_stored(read, lambda _: torch.empty(5, 7))


def test_a_missing_part_is_not_replaced_by_another_ranks(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.path(1).mkdir()
    save_tree(store.path(1), "state", {"ranks": [{}, {}]})
    save_tree(store.path(1), "shard-0", {"learner": 1})
    assert "learner" not in store.read(1, 1)[1]
    assert store.read(1, 2)[1]["learner"] == 1


def rank(rng: int, **more: Any) -> dict[str, Any]:
    return {"rng": rng, "hook_errors": {}, "components": {"reward/a": np.arange(3)}, **more}


def test_what_ranks_have_alike_goes_to_any_number_of_them() -> None:
    two = [rank(1), rank(2)]
    assert for_ranks(two, 2) == two
    assert [state["rng"] for state in for_ranks(two, 3)] == [1, 1, 1]
    assert len(for_ranks(two, 1)) == 1
    two[1]["components"] = {"reward/a": np.arange(3), "reward/b": torch.zeros(2)}
    two[0]["components"] = {"reward/a": np.arange(3), "reward/b": torch.ones(2)}
    with pytest.raises(RunDirError, match="2 processes kept different states of components/reward/b, which 1"):
        for_ranks(two, 1)


def sampled(prompt: Prompt, n: int) -> Rollout:
    return Rollout(prompt.id, n, (1, 2), (3,), np.zeros(1, np.float32), 3, FinishReason.EOS, "x", n)


def names(rollouts: Iterable[Rollout]) -> list[tuple[str, int]]:
    return [(r.prompt_id, r.group_index) for r in rollouts]


def sampled_by_one(sizes: Sequence[int]) -> RolloutBatch:
    """A batch of one process; one more prompt was sampled and set aside."""
    prompts = [Prompt(f"p{n}", ({"role": "user", "content": str(n)},)) for n in range(len(sizes) + 1)]
    groups = [PromptGroup(prompt, (n,), size) for n, (prompt, size) in enumerate(zip(prompts, sizes))]
    rollouts = [sampled(g.prompt, i) for g in groups for i in range(g.group_size)]
    scores = [Score(float(n)) for n in range(len(rollouts))]
    left_out = sampled(prompts[-1], 0)
    told = [("rollouts", ([*rollouts, left_out],)), ("rewards", ([*rollouts, left_out], [*scores, Score(0.0)]))]
    events = [*told, ("count", ({"groups_set_aside": 1},))]
    return RolloutBatch(groups, groups, rollouts, scores, metrics={"a": 1.0}, version=3, events=events)


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_a_batch_that_waits_is_divided_among_any_number_of_ranks_and_back(ranks: int) -> None:
    whole = sampled_by_one([2, 1, 4, 2, 3])
    shares = [reshard_batch([whole], rank, ranks) for rank in range(ranks)]
    assert names(r for share in shares for r in share.rollouts) == names(whole.rollouts)
    for share in shares:
        assert (share.version, share.metrics, share.groups) == (3, {"a": 1.0}, whole.groups)
        assert [r.prompt_id for r in share.rollouts] == [
            g.prompt.id for g in share.own_groups for _ in range(g.group_size)
        ]
        assert share.events[-1] == whole.events[-1]
    told = [[row for method, rows in share.events if method == "rewards" for row in zip(*rows)] for share in shares]
    for share, rows in zip(shares, told):
        assert set(names(share.rollouts)) <= set(names(r for r, _ in rows))
    rows = [(name, score) for of_rank in told for (r, score) in of_rank for name in names([r])]
    assert sorted(rows, key=str) == sorted(zip(names(whole.events[1][1][0]), whole.events[1][1][1]), key=str)
    again = reshard_batch(shares, 0, 1)
    assert names(again.rollouts) == names(whole.rollouts)
    assert (again.scores, again.groups, again.own_groups) == (whole.scores, whole.groups, whole.groups)
    assert [method for method, _ in again.events] == [method for method, _ in whole.events]


def train(*words: str) -> str:
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "final" / "model.safetensors")


def apart(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def settings(**trainer: Any) -> list[str]:
    values = {"checkpoint_every": 1, "optimizer.warmup_steps": 0, "optimizer.schedule": "constant", **trainer}
    return [w for key, value in values.items() for w in ("--set", f"trainer.{key}={value}")] + [
        "--set",
        "strategy.device=cpu",
    ]


@pytest.mark.slow
def test_parts_are_read_bit_for_bit_by_one_two_and_three_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_two, of_one = tmp_path / "two", tmp_path / "one"
    in_ranks(2, "save", of_two, of_two)
    with monkeypatch.context() as alone:
        variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for name, value in variables.items():
            alone.setenv(name, value)
        resharding.main("load and save", of_two, of_one)
    in_ranks(3, "load", of_one, of_one)


def in_ranks(ranks: int, what: str, source: Path, target: Path) -> None:
    """Run the script by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    command += [str(PARTS), what, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.long  # the same change under grpo, and back: below
def test_sft_on_two_shards_then_one_equals_one_process(tmp_path: Path) -> None:
    rows = [{"prompt": f"Count to {n % 9 + 1}.", "completion": " ".join("123456789"[: n % 9 + 1])} for n in range(48)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begin = [
        "--algo",
        "sft",
        "--model",
        "pocket",
        "--dataset",
        str(data),
        *settings(batch_size=8, eval_every=0, **{"optimizer.eps": 1e-3}),
    ]
    run, plain = tmp_path / "run", tmp_path / "plain"
    train(*begin, "--run-dir", str(run), "--set", "strategy=fsdp", "--nproc", "2", "--set", "trainer.max_steps=2")
    said = train("--resume", str(run), "--nproc", "1", "--set", "strategy=single", "--set", "trainer.max_steps=4")
    assert "strategy.name fsdp -> single" in said
    assert "trainer.max_steps 2 -> 4, processes 2 -> 1" in said
    assert train_here(*begin, "--run-dir", str(plain), "--set", "trainer.max_steps=4") == 0
    assert apart(weights(run), weights(plain)) < 1e-6
    changes = [row["changes"]["processes"] for row in json.loads((run / "plan.json").read_text())["extensions"]]
    assert changes == [[2, 1]]


GRPO = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--set", "reward.workers=1"]
GRPO += ["--set", "dataset.limit=64"]
GRPO += settings(
    rollout_batch_size=16,
    group_size=8,
    eval_samples=0,
    keep_checkpoints=9,
    **{"sampling.max_tokens": 12, "sampling.temperature": 1.5, "optimizer.eps": 1e-3, "optimizer.learning_rate": 1e-3},
)
"""Adam's step hardly follows the sign of rounding with such an epsilon."""
ONE, TWO = ["--nproc", "1", "--set", "strategy=single"], ["--nproc", "2", "--set", "strategy=fsdp"]


def sampled_in(run: Path) -> list[Any]:
    """Step, prompt, its tokens, and each completion's seed, tokens and policy version, as they were learned from."""
    rows = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    kept = ("seed", "completion_ids", "policy_version")
    return [
        (r["step"], r["prompt_id"], r["prompt_ids"], [[c[key] for key in kept] for c in r["completions"]])
        for r in rows
        if r["event"] == "prompt"
    ]


def check_alike(run: Path, plain: Path) -> None:
    """The same prompts, seeds, completions and losses; weights and moments that differ by rounding."""
    assert sampled_in(run) == sampled_in(plain)
    seeds = [completion[0] for *_, completions in sampled_in(plain) for completion in completions]
    assert len(seeds) == len(set(seeds)) == 16 * 6
    losses = [metric(folder, "loss") for folder in (run, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert min(metric(plain, "grad_norm")) > 1e-3, "every step learns"
    assert apart(weights(run), weights(plain)) < 1e-6
    assert apart(weights(plain), load_file(weights_path() / "model.safetensors")) > 1e-4, "the weights moved"


def metric(run: Path, name: str) -> list[float]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row[name] for row in rows if name in row]


def checkpoint_tensors(run: Path, step: int) -> dict[str, dict[str, torch.Tensor]]:
    folder = run / "checkpoints" / f"step-{step:06d}"
    return {f.relative_to(folder).as_posix(): load_file(f) for f in folder.rglob("*.safetensors")}


def checkpoint_texts(run: Path, step: int) -> dict[str, str]:
    """Numbers, names and random states; manifests hold nothing of their own."""
    folder = run / "checkpoints" / f"step-{step:06d}"
    files = [f for f in folder.rglob("*.json") if f.name != "manifest.json"]
    return {f.relative_to(folder).as_posix(): f.read_text() for f in files}


def train_again(run: Path, *words: str) -> None:
    """A finished run, taken up without a step left; its last checkpoint is written anew."""
    shutil.rmtree(run / "final")
    (run / "summary.json").unlink()
    train("--resume", str(run), *words)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_grpo_on_two_shards_then_one_process_then_two_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: Path, command: Command
) -> None:
    """Without a step every tensor stays bit for bit; with steps the run is one process's, to rounding."""
    run, still, plain = tmp_path / "run", tmp_path / "still", tmp_path / "plain"
    train(*GRPO, *TWO, "--run-dir", str(run), "--set", "trainer.steps=2")
    shutil.copytree(run, still)
    check_a_missing_part_is_refused(run, tmp_path / "damaged", command)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(faults))
        patch.setenv("ACME_SAVE_AGAIN", "1")
        train_again(still, *ONE)
        assert "sharded" not in {place.partition("/")[0] for place in checkpoint_tensors(still, 2)}
        train_again(still, *TWO)
    before, after = checkpoint_tensors(run, 2), checkpoint_tensors(still, 2)
    assert before.keys() == after.keys()
    assert {place.partition("/")[0] for place in before} == {
        "model",
        "sharded",
        "shard-0.safetensors",
        "shard-1.safetensors",
        "state.safetensors",
    }
    for place, tensors in before.items():
        assert tensors.keys() == after[place].keys()
        assert [name for name, tensor in tensors.items() if not torch.equal(tensor, after[place][name])] == []
    assert checkpoint_texts(run, 2) == checkpoint_texts(still, 2)
    train("--resume", str(run), *ONE, "--set", "trainer.steps=4")
    train("--resume", str(run), *TWO, "--set", "trainer.steps=6")
    assert train_here(*GRPO, "--run-dir", str(plain), "--set", "trainer.steps=6") == 0
    check_alike(run, plain)


def check_a_missing_part_is_refused(run: Path, damaged: Path, command: Command) -> None:
    """Of moments, and of what one rank wrote."""
    for name in ("sharded/shard-00002-model-00001-of-00001.safetensors", "shard-1.json"):
        shutil.copytree(run, damaged)
        shutil.rmtree(damaged / "checkpoints" / "step-000001")
        (damaged / "checkpoints" / "step-000002" / name).unlink()
        code, said = command("train", "--resume", damaged, *ONE, "--set", "trainer.steps=4")
        assert code == 2, said
        assert f"why: step 2: {name} is not there" in said
        assert not list(damaged.glob("checkpoints/step-00000[34]")), "no step was made"
        shutil.rmtree(damaged)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("several", "alone"),
    [pytest.param(TWO[:2], ONE[:2], marks=pytest.mark.long, id="ddp"), pytest.param(TWO, ONE, id="fsdp")],
)
def test_batches_that_were_sampled_ahead_are_divided_anew(tmp_path: Path, several: list[str], alone: list[str]) -> None:
    """One process, cut back to a step with batches in flight, then two, cut back, then one."""
    begin = [*GRPO, "--set", "trainer.rollouts.max_staleness=2", "--set", "trainer.steps=6"]
    plain, two, one = (tmp_path / name for name in ("plain", "two", "one"))
    assert train_here(*begin, "--run-dir", str(plain)) == 0
    cut_back(plain, 2, two)
    train("--resume", str(two), *several)
    check_alike(two, plain)
    cut_back(two, 4, one)
    assert train_here("--resume", str(one), *alone) == 0
    check_alike(one, plain)
    for run in (two, one):
        assert metric(run, "staleness/mean") == metric(plain, "staleness/mean")
        assert max(metric(run, "buffer/batches")[1:5]) > 0
    assert max(metric(plain, "staleness/mean")) == 2

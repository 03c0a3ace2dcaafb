"""Whole runs of the pocket model: what is trained, kept, stopped early and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf_plugin_pocket import weights_path

SMALL = (
    "train",
    "--algo",
    "ppo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "threads=1",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.train_batch_size=8",
    "--set",
    "trainer.steps=2",
    "--set",
    "trainer.eval_samples=0",
    "--set",
    "trainer.sampling.max_tokens=12",
    "--set",
    "trainer.epochs_per_rollout_batch=1",
    "--set",
    "reward.timeout_s=60",
    "--set",
    "reward.workers=1",
    "--set",
    "dataset.limit=64",
)
Train = Callable[..., "Ran"]
Weights = dict[str, torch.Tensor]


class Ran:
    """What a run left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.summary = folder, json.loads((folder / "summary.json").read_text())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        self.steps = [r for r in rows if "tokens_generated" in r]

    @property
    def policy(self) -> Weights:
        """Final weights of the policy."""
        return load_file(str(self.folder / "final" / "model.safetensors"))

    def critic(self, step: int = 2) -> Weights:
        """The critic's weights after a step."""
        return load_file(str(self.folder / f"checkpoints/step-{step:06d}/critic.safetensors"))


@pytest.fixture
def train(command: Callable[..., tuple[int, str]], tmp_path: Path) -> Train:
    """``train("a", "trainer.steps=2")``: a small run with these settings in the folder ``a``."""

    def run(name: str, *settings: str) -> Ran:
        code, err = command(*SMALL, "--run-dir", tmp_path / name, *(w for s in settings for w in ("--set", s)))
        assert code == 0, err
        return Ran(tmp_path / name)

    return run


def apart(a: Weights, b: Weights) -> float:
    """Largest difference of any weight."""
    assert a.keys() == b.keys()
    return max(float((a[k] - b[k].to(a[k].dtype)).abs().max()) for k in a)


def start() -> Weights:
    """The policy's weights before training."""
    return load_file(str(weights_path() / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((), id="separate"),
        pytest.param(("advantage.critic.kind=shared",), id="shared"),
        pytest.param(
            ("advantage.critic.kind=shared", "advantage.critic.stop_gradient=true"),
            id="stop_gradient",
            marks=pytest.mark.slow,
        ),
        pytest.param(("model.lora.r=4",), id="lora"),
        pytest.param(("model.lora.r=4", "advantage.critic.kind=shared"), id="lora_shared", marks=pytest.mark.long),
        pytest.param(("advantage.critic.path=pocket",), id="path", marks=pytest.mark.slow),
    ],
)
def test_policy_and_critic_learn(settings: tuple[str, ...], train: Train) -> None:
    run = train("run", *settings, "trainer.group_size=2")
    names = {"value_loss", "explained_variance", "clip_fraction", "approx_kl", "kl_coefficient", "critic_grad_norm"}
    assert names <= run.steps[1].keys()
    assert run.steps[0]["value/mean"] == 0, "the head starts at zero"
    assert run.steps[1]["value/mean"] != 0
    assert run.summary["updates"] == 4
    assert apart(start(), run.policy) > 1e-5
    critic = run.critic()
    assert float(critic["weight_H"].abs().max()) > 0
    shared, lora = any("shared" in s for s in settings), any("lora" in s for s in settings)
    assert (len(critic) > 2) is not shared, "a shared critic is its head"
    assert all("lora" in k or k in ("weight_H", "bias") for k in critic) or not lora, "its base stays as it is"
    assert not list((run.folder / "final").glob("*critic*"))


@pytest.mark.slow
def test_the_update_does_not_depend_on_the_micro_batch_size(train: Train) -> None:
    """Small steps, so that rounding does not show in Adam's sign."""
    settings = (
        "trainer.optimizer.eps=1e-3",
        "trainer.group_size=2",
        "trainer.steps=1",
        "trainer.rollout_batch_size=32",
        "trainer.train_batch_size=16",
    )
    runs = [train(str(n), *settings, f"trainer.micro_batch_size={n}") for n in (3, 16)]
    for name in ("reward/mean", "reward/std", "tokens_generated"):
        assert runs[0].steps[0][name] == runs[1].steps[0][name] > 0, f"{name}: not the same rollouts"
    traces = [(run.folder / "trace.jsonl").read_text().splitlines() for run in runs]
    written = [
        [c["text"] for row in map(json.loads, rows) if row["event"] == "prompt" for c in row["completions"]]
        for rows in traces
    ]
    assert written[0] == written[1] != [], "the same completions"
    assert apart(runs[0].policy, start()) > 1e-5
    moved = {k: apart({k: a}, {k: runs[1].policy[k]}) for k, a in runs[0].policy.items()}
    assert {k: d for k, d in moved.items() if d >= 1e-6} == {}, json.dumps([run.steps[0] for run in runs])
    assert apart(runs[0].critic(1), runs[1].critic(1)) < 1e-6
    for name in ("value_loss", "approx_kl", "critic_grad_norm", "explained_variance", "loss"):
        assert runs[0].steps[0].get(name) == pytest.approx(runs[1].steps[0].get(name), rel=1e-4, abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("separate", marks=pytest.mark.long), "shared"])
def test_during_warm_up_only_the_critic_learns(kind: str, train: Train) -> None:
    decay = "trainer.optimizer.weight_decay=0.1"
    run = train(
        "run",
        "advantage.warmup_steps=2",
        f"advantage.critic.kind={kind}",
        decay,
        "trainer.steps=3",
        "trainer.checkpoint_every=1",
        "trainer.keep_checkpoints=3",
        "trainer.optimizer.warmup_steps=4",
    )
    warm = load_file(str(run.folder / "checkpoints/step-000002/model/model.safetensors"))
    assert apart(start(), warm) == 0
    assert float(run.critic()["weight_H"].abs().max()) > 0
    assert "grad_norm" not in run.steps[1]
    assert apart(start(), run.policy) > 0
    assert [s["learning_rate"] for s in run.steps[:2]] == [0, 0]
    first = train("plain", "trainer.steps=1", decay, "trainer.optimizer.warmup_steps=4").steps[0]["learning_rate"]
    assert run.steps[2]["learning_rate"] == first, "the policy's own warm-up begins only now"


@pytest.mark.slow
def test_after_a_warm_up_the_policys_schedule_still_reaches_its_end(train: Train) -> None:
    rates = [
        row["learning_rate"]
        for row in train(
            "run",
            "advantage.warmup_steps=2",
            "trainer.steps=6",
            "trainer.optimizer.schedule=linear",
            "trainer.optimizer.warmup_steps=0",
            "trainer.train_batch_size=16",
        ).steps
    ]
    assert [r / rates[2] for r in rates] == pytest.approx([0, 0, 1, 0.75, 0.5, 0.25])


@pytest.mark.slow
def test_updates_stop_once_the_policy_is_too_far_from_the_one_that_sampled(train: Train) -> None:
    fast = (
        "trainer.optimizer.learning_rate=0.003",
        "trainer.optimizer.warmup_steps=0",
        "trainer.epochs_per_rollout_batch=2",
    )
    free = train("free", *fast)
    limited = train("held", *fast, "trainer.target_kl=1e-4")
    assert free.summary["updates"] == 8
    assert limited.summary["updates"] == 8 - limited.summary["dropped"]["updates_beyond_target_kl"] < 8
    assert limited.steps[0]["approx_kl"] < free.steps[0]["approx_kl"]


@pytest.mark.slow
def test_the_critic_has_its_own_learning_rate(train: Train) -> None:
    run = train("run", "advantage.critic.learning_rate=1e-8", "trainer.steps=1")
    assert 0 < float(run.critic(1)["weight_H"].abs().max()) < 1e-7
    assert apart(start(), run.policy) > 1e-5
    assert run.steps[0]["learning_rate"] > 2e-4


@pytest.mark.long
def test_reward_rises_and_the_critic_explains_it(train: Train) -> None:
    run = train(
        "run",
        "trainer.rollout_batch_size=256",
        "trainer.train_batch_size=128",
        "trainer.epochs_per_rollout_batch=2",
        "trainer.steps=14",
    )
    rewards = [row["reward/mean"] for row in run.steps]
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 5 * 0.05, rewards
    explained = [row["explained_variance"] for row in run.steps]
    assert sum(explained[-5:]) / 5 > sum(explained[:3]) / 3 + 0.02, "a head alone learns more slowly than a trunk"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("advantage.name=group_norm", "trainer.group_size=4"), "algorithm 'ppo' needs a critic"),
        (("advantage.critic.kind=shared", "advantage.critic.path=pocket"), "would have no effect"),
        (("advantage.critic.path=./nowhere",), "there is no model folder './nowhere'"),
        (("advantage.gae_lambda=1.5",), "gae_lambda"),
        (("advantage.critic.kind=both",), "separate"),
        (("trainer.kl.where=loss",), "kl.controller adaptive steers the KL in the reward"),
        (("trainer.dynamic_sampling.max_rounds=2",), "dynamic_sampling compares the completions of a prompt"),
        (("advantage.warmup_steps=2",), "leaves none of the 2 steps to the policy"),
        (("trainer.kl.horizon=3",), "kl.horizon 3 is too short for 16 completions a step"),
        (("trainer.kl.controller=fixed", "trainer.kl.target=3"), "kl.target has no effect"),
        (("trainer.dynamic_sampling.max_rounds=2", "trainer.group_size=4"), "advantage 'gae' learns from them too"),
        (("trainer.target_kl=0.1", "trainer.train_batch_size=16"), "target_kl 0.1 would have no effect"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    settings: tuple[str, ...],
    message: str,
    command: Callable[..., tuple[int, str]],
    tmp_path: Path,
) -> None:
    words = [w for s in settings for w in ("--set", s)]
    code, err = command(*SMALL, "--run-dir", tmp_path / "run", "--dry-run", *words)
    assert code == 2, err
    assert message in " ".join(err.split())


def test_a_critic_that_reads_other_tokens_is_refused(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    other_model = shutil.copytree(weights_path(), tmp_path / "other")
    tokenizer: Any = json.loads((other_model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other_model / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, err = command(*SMALL, "--run-dir", tmp_path / "run", "--set", f"advantage.critic.path={other_model}")
    assert code == 2, err
    assert "reads other tokens than policy 'pocket'" in " ".join(err.split())


def test_a_critic_with_a_shorter_context_is_refused(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    other_model = shutil.copytree(weights_path(), tmp_path / "other")
    config: Any = json.loads((other_model / "config.json").read_text())
    config["max_position_embeddings"] = 100
    (other_model / "config.json").write_text(json.dumps(config))
    code, err = command(*SMALL, "--run-dir", tmp_path / "run", "--set", f"advantage.critic.path={other_model}")
    assert code == 2, err
    assert "reads at most 100 tokens, but policy 'pocket' writes up to" in " ".join(err.split())
    assert "--set model.max_context=100" in err
    assert not (tmp_path / "run").exists()

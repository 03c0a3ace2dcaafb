"""Trainers and loss; a process model that learns to see wrong steps, and step rewards that train a policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.data import read_jsonl
from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_pocket.data import load_pairs
from rlhf_plugin_pocket.gold import is_hollow
from rlhf_plugin_prm.config import OrmConfig, PrmConfig, StepBceConfig
from rlhf_plugin_prm.loss import StepBatch, StepBce
from rlhf_plugin_prm.net import StepItem, StepModule
from rlhf_plugin_prm.steps import split_steps
from rlhf_plugin_reward.net import fresh_net
from rlhf_testing import check_loss, check_trainer

Command = Callable[..., tuple[int, str]]


def test_the_loss_conforms() -> None:
    check_loss(StepBceConfig())


def test_wrong_steps_weigh_more_and_accuracies_are_told_apart() -> None:
    logprobs = torch.tensor([[-0.1, -2.0], [-3.0, -9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    labels = torch.tensor([[True, False], [False, False]])
    out = StepBce(4.0)(StepBatch(logprobs, mask, labels_BT=labels))
    assert out.loss.detach()[mask].tolist() == pytest.approx([0.1, 8.0, 12.0])
    metrics = {k: (float(s), float(w)) for k, (s, w) in out.metrics.items()}
    assert metrics == {"accuracy": (1, 3), "accuracy_right": (1, 1), "accuracy_wrong": (0, 2)}


def test_a_batch_scores_each_label_as_alone() -> None:
    net = fresh_net(load_policy(ModelConfig()), 1, 0, "none")
    items = [
        StepItem("a", tuple(range(5, 40)), (3, 20, 34), (True, False, True)),
        StepItem("b", (7, 8, 9), (2,), (False,)),
    ]
    module = StepModule(net)
    with torch.no_grad():
        together = module(items)
        alone = [module([i]) for i in items]
        scores = net([i.ids[: p + 1] for i in items for p in i.places_T])[:, 0]
    assert together.mask_BT.tolist() == [[True, True, True], [True, False, False]]
    for row, single in zip(together.logprobs_BT, alone):
        assert torch.allclose(row[: single.logprobs_BT.shape[1]], single.logprobs_BT[0], atol=1e-5)
    signs = torch.tensor([1.0, -1, 1, -1])
    assert torch.allclose(
        together.logprobs_BT[together.mask_BT], torch.nn.functional.logsigmoid(signs * scores), atol=1e-5
    )


@pytest.mark.parametrize(
    "config",
    [
        PrmConfig(),
        pytest.param(OrmConfig(), marks=pytest.mark.slow),
        pytest.param(PrmConfig(train_trunk="frozen"), marks=pytest.mark.slow),
    ],
)
def test_the_trainers_conform(config: PrmConfig) -> None:
    check_trainer(config, settings={"dataset": {"name": "chain_steps", "chains": 12}})


def train(command: Command, run: Path, *options: object) -> dict[str, Any]:
    code, err = command("train", *options, "--set", "threads=1", "--run-dir", run)
    assert code == 0, err
    return json.loads((run / "summary.json").read_text())


def sets(settings: Sequence[str]) -> list[str]:
    """Settings as options of the command."""
    return [word for setting in settings for word in ("--set", setting)]


def test_after_the_first_error_nothing_is_learned_if_so_wished(command: Command, tmp_path: Path) -> None:
    rows = [{"prompt": "2 + 3?", "steps": ["2 + 3 = 6", "6 + 1 = 7", "7"], "label": n % 2 - 1} for n in range(40)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    shares: list[float] = []
    for how in ("keep", "ignore"):
        run = tmp_path / how
        train(
            command,
            run,
            "--algo",
            "prm",
            "--dataset",
            file,
            "--set",
            "dataset.heldout_fraction=0",
            "--set",
            "trainer.max_steps=1",
            "--set",
            "trainer.batch_size=40",
            "--set",
            f"trainer.after_first_error={how}",
        )
        shares.append(next(r["train/tokens"] for r in read_jsonl(run / "metrics.jsonl") if "train/tokens" in r))
    assert shares == [120, 20 * 3 + 20]


@pytest.mark.slow
def test_step_advantages_from_a_process_model_reach_the_update(command: Command, prm: Path, tmp_path: Path) -> None:
    """Answers of several sentences, each its own step; a constant reward per completion could not move the weights."""
    run = tmp_path / "run"
    summary = train(
        command,
        run,
        "--algo",
        "grpo",
        "--dataset",
        "pocket/assistant",
        "--reward",
        "prm",
        "--set",
        f"reward.path={prm}",
        "--set",
        "reward.split=sentence",
        "--set",
        "advantage=step",
        "--set",
        "trainer.steps=1",
        "--set",
        "trainer.rollout_batch_size=16",
        "--set",
        "trainer.group_size=4",
        "--set",
        "trainer.eval_samples=0",
        "--set",
        "trainer.gold_samples=0",
    )
    assert summary["status"] == "completed"
    row = next(r for r in read_jsonl(run / "metrics.jsonl") if "advantage/steps" in r)
    assert row["advantage/steps"] > 1.2
    assert row["advantage/constant_groups"] == 0
    assert row["grad_norm"] > 0
    assert {"reward/part/step_1", "reward/part/step_2", "reward/part/end_2"} <= set(row)


def train_on_sentences(command: Command, folder: Path, count: int) -> dict[str, Any]:
    """Sentences of the assistant, wrong if hollow; the summary of ``folder/prm``."""
    rows: list[dict[str, Any]] = []
    for pair in load_pairs("train")[:count]:
        text = pair["rejected"]
        labels = [not is_hollow(text[s.start : s.end]) for s in split_steps(text, "sentence")]
        rows.append({"prompt": pair["prompt"], "completion": text, "labels": labels})
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    settings = (
        "trainer.split=sentence",
        "trainer.batch_size=16",
        "trainer.optimizer.learning_rate=3e-4",
        "dataset.heldout_fraction=0.2",
        "trainer.eval_every=0",
        "trainer.epochs=2",
    )
    return train(command, folder / "prm", "--algo", "prm", "--dataset", file, *sets(settings))


@pytest.mark.slow
def test_a_process_model_tells_right_from_wrong_steps(command: Command, tmp_path: Path) -> None:
    learned = train_on_sentences(command, tmp_path, 160)
    assert learned["evaluation_after"]["eval/accuracy_right"] > 0.9
    assert learned["evaluation_after"]["eval/accuracy_wrong"] > 0.9


@pytest.mark.long  # one step of it: above
@pytest.mark.slow
def test_steps_of_a_process_model_train_a_policy(command: Command, tmp_path: Path) -> None:
    """Hollow sentences become rarer."""
    train_on_sentences(command, tmp_path, 400)
    policy = (
        f"reward.path={tmp_path / 'prm' / 'final'}",
        "advantage=step",
        "trainer.steps=8",
        "trainer.eval_samples=64",
        "trainer.gold_samples=64",
        "trainer.eval_every=0",
    )
    grpo = ("--algo", "grpo", "--dataset", "pocket/assistant", "--reward", "prm")
    summary = train(command, tmp_path / "grpo", *grpo, *sets(policy))
    before, after = (summary[f"evaluation_{when}"]["eval/gold/hollow"] for when in ("before", "after"))
    assert before > 0.2
    assert after < 0.6 * before

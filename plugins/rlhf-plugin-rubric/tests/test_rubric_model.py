"""The reward model of grades: what its loss is, what it learns, and what data it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.data import Prompt, read_jsonl
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import Turn
from rlhf_plugin_pocket.data import load_pairs
from rlhf_plugin_pocket.gold import is_hollow, words
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_rubric.config import RubricModelConfig
from rlhf_plugin_rubric.model import GradeBatch, GradeLoss, save_model
from rlhf_plugin_rubric.rubric import Rubric
from rlhf_testing import check_reward, make_context

Command = Callable[..., tuple[int, str]]
CRITERIA = [
    {"name": "plain", "question": "Is it free of hollow phrases?", "weight": 3},
    {"name": "short", "question": "Is it short?", "scale": [0, 10]},
]
RUBRIC = Rubric.model_validate({"criteria": CRITERIA})


def grades(text: str) -> dict[str, float]:
    """What a judge without faults says."""
    return {"plain": 1 if is_hollow(text) else 5, "short": max(0, 10 - len(words(text)) // 2)}


@pytest.fixture
def graded(tmp_path: Path) -> Callable[..., Path]:
    """``graded(rows)``: both answers of pocket pairs with their grades, as JSON lines; and the rubric beside them."""
    (tmp_path / "rubric.yaml").write_text(json.dumps(CRITERIA))

    def write(pairs: int, change: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row) -> Path:
        rows = [
            {"id": f"{i}/{side}", "prompt": row["prompt"], "completion": row[side], "grades": grades(row[side])}
            for i, row in enumerate(load_pairs("train")[:pairs])
            for side in ("chosen", "rejected")
        ]
        file = tmp_path / "graded.jsonl"
        file.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))
        return file

    return write


def train(command: Command, tmp_path: Path, file: Path, *more: str) -> tuple[int, str]:
    settings = ("trainer.batch_size=32", "threads=1", f"trainer.rubric={tmp_path}/rubric.yaml", *more)
    return command(
        "train",
        "--algo",
        "rubric_model",
        "--dataset",
        file,
        "--run-dir",
        tmp_path / "run",
        *(word for setting in settings for word in ("--set", setting)),
    )


def test_the_loss_is_the_weighted_squared_error() -> None:
    scores = torch.tensor([[0.2, 0.9], [0.4, 0.5]], requires_grad=True)
    target = torch.tensor([[0.0, 1.0], [1.0, 0.5]])
    out = GradeLoss(RUBRIC, [0.5, 0.5])(GradeBatch(scores, target))
    weights = torch.tensor([0.75, 0.25])
    expected = (weights * torch.nn.functional.mse_loss(scores, target, reduction="none")).sum(1)
    torch.testing.assert_close(out.loss, expected)
    out.loss.sum().backward()
    torch.testing.assert_close(scores.grad, 2 * weights * (scores - target).detach())
    total, weight = out.metrics["unexplained"]
    assert float(total / weight) == pytest.approx(float(expected.sum().detach()) / (0.75 * 0.5 + 0.25 * 0.25))
    errors = [float(s) / float(w) for s, w in (out.metrics["mse/plain"], out.metrics["mse/short"])]
    assert errors == pytest.approx([0.2, 0.005])


@pytest.mark.slow
def test_it_learns_the_grades_and_scores_every_criterion(command: Command, tmp_path: Path, graded: Any) -> None:
    settings = ("trainer.optimizer.learning_rate=1e-3", "trainer.epochs=2", "trainer.batch_size=16")
    code, err = train(command, tmp_path, graded(200), *settings)
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    before, after = (summary[f"evaluation_{when}"]["eval/unexplained"] for when in ("before", "after"))
    assert after < 0.3 < 0.9 < before
    reward = RubricModelConfig(path=str(tmp_path / "run" / "final")).build(make_context())
    rows = load_pairs("heldout")[:40]
    samples = [
        Sample(Prompt(f"p/{i}", ({"role": "user", "content": r["prompt"]},)), r["rejected"]) for i, r in enumerate(rows)
    ]
    scores = reward.score(samples)
    plain = np.array([s.parts["plain"] for s in scores])
    hollow = np.array([is_hollow(s.completion) for s in samples])
    assert plain[~hollow].mean() - plain[hollow].mean() > 0.5
    assert scores[0].value == pytest.approx(0.75 * scores[0].parts["plain"] + 0.25 * scores[0].parts["short"])
    check_reward_scores(reward, samples)
    updates = [r["rows"] for r in read_jsonl(tmp_path / "run" / "trace.jsonl") if r.get("event") == "update"]
    losses = [sum(row["loss"] for row in rows) / len(rows) for rows in updates]
    assert losses[-1] < 0.5 * losses[0], "the traced loss is the one that falls"


def check_reward_scores(reward: Any, samples: list[Sample]) -> None:
    """A score does not depend on its batch."""
    together = [s.value for s in reward.score(samples)]
    alone = [reward.score([s])[0].value for s in samples[:8]]
    assert together[:8] == pytest.approx(alone, abs=1e-5)


def test_rows_that_a_judge_scored_are_learned_from_and_missing_ones_counted(
    command: Command, tmp_path: Path, graded: Any
) -> None:
    def scored(row: dict[str, Any]) -> dict[str, Any]:
        parts, ok = RUBRIC.read(row.pop("grades")), not row["id"].startswith("3/")
        return {**row, "score": RUBRIC.value(parts), "status": "ok" if ok else "error", "parts": parts if ok else {}}

    code, err = train(command, tmp_path, graded(20, scored), "trainer.max_steps=1", "dataset.heldout_fraction=0.2")
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["dropped"]["grades_missing"] == 2
    assert summary["evaluation_before"]["eval/unexplained"] == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda row: {**row, "grades": {**row["grades"], "plain": 9}}, "outside its scale from 1 to 5"),
        (lambda row: {**row, "grades": {"plain": 3}}, "no grade for short"),
        (lambda row: {k: v for k, v in row.items() if k != "grades"}, "grades must be an object"),
        (lambda row: {k: v for k, v in row.items() if k != "completion"}, "has no response"),
        (lambda row: {**row, "grades": {"plain": 3, "short": 3}}, "the same grades"),
        (lambda row: {**row, "status": "error"}, "no row has grades"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_refused(
    command: Command, tmp_path: Path, graded: Any, change: Any, why: str
) -> None:
    code, err = train(command, tmp_path, graded(6, change), "trainer.eval_samples=0")
    assert code == 2
    assert why in err
    if "grade" in why and "same" not in why and "no row" not in why:
        assert "graded.jsonl, line" in err


def test_a_folder_without_a_rubric_model_is_refused(command: Command, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Hi", "completion": "Hello"}\n')
    code, err = command("reward", "score", "--reward", "rubric_model", "--set", f"path={tmp_path}", "--input", rows)
    assert code == 2
    assert "holds no rubric model" in err


@pytest.mark.slow
def test_the_model_conforms(command: Command, tmp_path: Path, graded: Any) -> None:
    assert train(command, tmp_path, graded(10), "trainer.max_steps=1", "trainer.eval_samples=0")[0] == 0
    check_reward(RubricModelConfig(path=str(tmp_path / "run" / "final")))


def test_a_model_of_grades_reads_an_episode_with_its_calls_and_results(tmp_path: Path) -> None:
    call = {"id": "c0", "type": "function", "function": {"name": "search", "arguments": {"query": "age of Nelo"}}}
    tools: Any = ({"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}},)
    asked = {"role": "user", "content": "What is the age of Nelo?"}
    environment = SimpleNamespace(name="lookup", offered=lambda: tools)

    def said(result: str) -> list[Any]:
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        return [calling, {"role": "tool", "content": result, "tool_call_id": "c0", "name": "search"}]

    def episode(result: str) -> Sample:
        messages = [*said(result), {"role": "assistant", "content": "It is 30."}]
        turns = tuple(Turn((n, n + 1), m["role"], m) for n, m in enumerate(messages))
        return Sample(Prompt("p", (asked,), tools=tools), "It is 30.", trajectory=turns)

    def reward(model: str) -> Any:
        policy = load_policy(ModelConfig(path=model))
        save_model(
            fresh_net(policy, 2, 0, "none", copy_trunk=False), policy.tokenizer, RUBRIC, [0.5, 0.5], tmp_path / model
        )
        ctx = make_context(config=SimpleNamespace(environment=environment), policy=policy)
        return RubricModelConfig(path=str(tmp_path / model)).build(ctx)

    flat = Sample(Prompt("p", (asked, *said("The age is 30.")), tools=tools), "It is 30.")
    one, other, whole = reward("pocket-tools").score([episode("The age is 30."), episode("The age is 31."), flat])
    assert one.value == pytest.approx(whole.value, abs=1e-6)
    assert abs(one.value - other.value) > 1e-6, "what the tool said is read"
    with pytest.raises(ModelError, match="cannot read episodes of environment 'lookup'"):
        reward("pocket")

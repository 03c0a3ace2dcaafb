"""Published files as data sets, reasoning-gym, and whole runs with their verifiers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import DatasetError, Prompt
from rlhf_core.data.files import read_text
from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.datasets.config import Gsm8kDataConfig, IFEvalDataConfig, MathDataConfig, MbppDataConfig
from rlhf_plugin_verifiers.gym.config import GymDataConfig, GymVerifierConfig
from rlhf_plugin_verifiers.gym.source import GymSource
from rlhf_plugin_verifiers.maths.gsm8k import strict_number
from rlhf_plugin_verifiers.maths.tags import question_only_reward_fn
from rlhf_plugin_verifiers.number_forms import whole_number
from rlhf_testing import check_dataset, check_verifier


def test_gsm8k_and_its_own_solutions(test_data: Path) -> None:
    path = str(test_data / "gsm8k/test.jsonl.gz")
    rows = Gsm8kDataConfig(path=path).build(None).rows("train")  # type: ignore[arg-type]
    assert len(rows) == 1319
    assert rows[0]["answer"] == "18"
    assert "<<" not in rows[0]["completion"]
    assert all(strict_number(r["completion"]) == whole_number(r["answer"]) for r in rows)
    r1 = Gsm8kDataConfig(path=path, prompt="r1_zero").build(None).rows("train")[0]  # type: ignore[arg-type]
    assert r1["prompt"].endswith(f"User: {rows[0]['prompt']}\nAssistant: <think>")


def test_math_rows(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    published = [
        {"problem": "Half?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 1"},
        {"question": "Two?", "answer": "2"},
    ]
    file.write_text("\n".join(map(json.dumps, published)))
    rows = MathDataConfig(path=str(file)).build(None).rows("train")  # type: ignore[arg-type]
    assert [(r["prompt"], r["answer"]) for r in rows] == [("Half?", r"\frac{1}{2}"), ("Two?", "2")]
    assert question_only_reward_fn(rows[0]["completion"], rows[0]["answer"])["reward"] == 1.0
    file.write_text(json.dumps({"problem": "Half?", "solution": "It is 1/2."}))
    with pytest.raises(DatasetError, match=r"(?s)math.jsonl, line 1.*no \\boxed"):
        MathDataConfig(path=str(file)).build(None).rows("train")  # type: ignore[arg-type]


def test_ifeval_and_mbpp(test_data: Path) -> None:
    rows = IFEvalDataConfig(path=str(test_data / "ifbench/IFBench_test.jsonl.gz")).build(None).rows("train")  # type: ignore[arg-type]
    assert len(rows) == 300
    assert all(v is not None for row in rows for arguments in row["kwargs"] for v in arguments.values())
    tasks = MbppDataConfig(path=str(test_data / "mbpp/sanitized-mbpp.json")).build(None).rows("train")  # type: ignore[arg-type]
    assert len(tasks) == 427
    assert all(task["test_list"][-1] in task["prompt"] and "def " in task["code"] for task in tasks)


def test_conformance(test_data: Path) -> None:
    check_dataset(Gsm8kDataConfig(path=str(test_data / "gsm8k/test.jsonl.gz")))
    check_dataset(MbppDataConfig(path=str(test_data / "mbpp/sanitized-mbpp.json")))
    check_dataset(IFEvalDataConfig(path=str(test_data / "ifeval/input_data.jsonl")))
    pytest.importorskip("reasoning_gym")
    check_dataset(GymDataConfig(task="chain_sum", size=4, heldout_size=2))


@pytest.mark.parametrize("task", ["chain_sum", "spell_backward", "acre"])
def test_reasoning_gym(task: str) -> None:
    pytest.importorskip("reasoning_gym")
    source = GymSource(GymDataConfig(task=task, size=3, heldout_size=2))
    rows, held_out = source.rows("train"), source.rows("heldout")
    assert len(rows) == 3
    assert held_out
    assert not {r["prompt"] for r in rows} & {r["prompt"] for r in held_out}
    prompts = [
        Prompt(
            r["id"],
            ({"role": "user", "content": r["prompt"]},),
            r["answer"],
            "gym",
            {"reasoning_gym": r["reasoning_gym"]},
        )
        for r in rows
    ]
    strict, lenient = (GymVerifierConfig(mode=m).build(None) for m in ("strict", "lenient"))  # type: ignore[arg-type]
    for prompt in prompts:
        tagged, bare = Sample(prompt, f"so <answer>{prompt.answer}</answer>"), Sample(prompt, str(prompt.answer))
        assert strict.verify(tagged).parts == {"format": 1.0, "answer": 1.0, "reward": 1.0}
        assert strict.verify(bare).value == 0.0
        assert lenient.verify(bare).value == 1.0
        never = strict.verify(Sample(prompt, "<answer>never</answer>"))
        assert never.ok
        assert never.value < 1.0
    check_verifier(GymVerifierConfig(), samples=[Sample(prompts[0], t) for t in ("", "<answer>1</answer>", "((" * 99)])


def test_reasoning_gym_refuses_what_it_does_not_know(command: Callable) -> None:
    pytest.importorskip("reasoning_gym")
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "reasoning_gym",
        "--set",
        "dataset={name: reasoning_gym, task: chain_sun}",
    )
    assert code == 2
    assert "did you mean 'chain_sum'" in output
    code, output = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "reasoning_gym",
        "--set",
        "dataset={name: reasoning_gym, task: chain_sum, settings: {min_termz: 1}}",
    )
    assert code == 2
    assert "min_termz" in output


def test_without_reasoning_gym_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"verifiers\[gym\]"):
        GymDataConfig(task="chain_sum").preflight(None)  # type: ignore[arg-type]


def run(command: Callable, folder: Path, *settings: str) -> dict[str, float]:
    """Train two steps and return the metrics of the last."""
    options = [
        *settings,
        "trainer.steps=2",
        "trainer.rollout_batch_size=4",
        "trainer.train_batch_size=4",
        "trainer.group_size=2",
        "trainer.eval_samples=1",
        "dataset.limit=40",
    ]
    code, output = command("train", "--algo", "grpo", "--run-dir", folder, *[p for o in options for p in ("--set", o)])
    assert code == 0, output
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return next(row for row in rows if row["step"] == 2 and "reward/mean" in row)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "dataset"),
    [
        ("gsm8k", "{name: pocket, subset: arithmetic}"),
        pytest.param("math", "{name: pocket, subset: arithmetic}", marks=pytest.mark.long),
        ("reasoning_gym", "{name: reasoning_gym, task: chain_sum, size: 20, heldout_size: 4}"),
        ("ifeval", "{name: ifeval, path: IFEVAL}"),
    ],
)
def test_two_steps_of_grpo(command: Callable, tmp_path: Path, reward: str, dataset: str) -> None:
    if reward == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    row = {"key": 1, "prompt": "Hi", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"x": None}]}
    file = tmp_path / "ifeval.jsonl"
    file.write_text("\n".join(json.dumps({**row, "key": n}) for n in range(20)))
    metrics = run(command, tmp_path / "run", f"reward.name={reward}", f"dataset={dataset.replace('IFEVAL', str(file))}")
    assert 0 <= metrics["reward/part/answer"] <= 1


@pytest.mark.long  # the same reward and rows with another model: the test above; this model: tests/real
@pytest.mark.timeout(600)
def test_two_steps_of_a_real_model_on_gsm8k(command: Callable, test_data: Path, tmp_path: Path) -> None:
    model = os.environ.get("RLHF_SMOLLM2_GGUF")
    if not model:
        pytest.skip("RLHF_SMOLLM2_GGUF is not set: no real model")
    rows = read_text(str(test_data / "gsm8k/train.jsonl.gz")).splitlines()[:40]
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(rows))
    metrics = run(
        command,
        tmp_path / "run",
        "reward.name=gsm8k",
        "reward.verifier.mode=strict",
        f"dataset={{name: gsm8k, path: {tmp_path / 'gsm8k.jsonl'}}}",
        f"model.path={model}",
        "trainer.sampling.max_tokens=16",
        "trainer.eval_sampling.max_tokens=16",
    )
    assert {"reward/part/format", "reward/part/answer", "reward/part/reward"} <= set(metrics)

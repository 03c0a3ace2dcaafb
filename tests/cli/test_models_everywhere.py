"""Wherever a model goes, a run, a checkpoint, a final folder, a run's name or a hub id goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.paths import model_folder
from rlhf_core.models.sources import weights_digest
from rlhf_plugin_native.as_trained import planned_format

Rlhf = Callable[..., Any]

PAIRS = [{"prompt": f"What is {n} + 2?", "chosen": f"It is {n + 2}.", "rejected": f"It is {n}."} for n in range(4)]
POLICY_COMMANDS: dict[str, str] = {
    "generate": "generate --model M --prompt Hi --max-tokens 2",
    "train": "train --algo grpo --reward verifier --dataset pocket/arithmetic --model M --dry-run --json",
    "setting": "train --algo grpo --reward verifier --dataset pocket/arithmetic --set model.path=M --dry-run --json",
    "critic": "train --algo ppo --reward verifier --dataset pocket/arithmetic --set advantage.critic.path=M "
    "--dry-run --json",
    "judge": "train --algo grpo --reward judge --set reward.judge.name=local --set reward.judge.model.path=M "
    "--dry-run --json",
    "eval": "eval prompts --dataset pocket/arithmetic --verifier numeric --limit 2 --max-tokens 2 --out evals "
    "--model M",
    "eval policies": "eval policies --baseline M --policy x=M --reference M --dataset prompts.jsonl "
    "--split train --max-tokens 2 --reward verifier --out compared",
    "data generate": "data generate sft --model M --dataset prompts.jsonl --count 1 --output out.jsonl --dry-run",
}
"""Command -> its arguments, with M where the model goes."""
REWARD_COMMANDS: dict[str, str] = {
    "reward score": "reward score --model M --input answers.jsonl",
    "reward evaluate": "reward evaluate --model M --pairs pairs.jsonl --probe none",
    "train": "train --algo grpo --reward bradley_terry --set reward.path=M --dry-run --json",
    "data filter": "data filter --dataset pairs.jsonl --model M --output kept.jsonl",
}


@pytest.fixture
def there(rlhf: Rlhf) -> Rlhf:
    """``rlhf`` in a folder with small files of each form."""
    write = {"pairs.jsonl": PAIRS, "answers.jsonl": [{"prompt": "Hi", "completion": "Hello."}]}
    write["prompts.jsonl"] = [{"prompt": row["prompt"], "answer": "4"} for row in PAIRS]
    for name, rows in write.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rlhf


def filled(line: str, model: Path | str) -> list[str]:
    return [arg[:-1] + str(model) if arg == "M" or arg.endswith("=M") else arg for arg in line.split()]


@pytest.mark.parametrize("name", POLICY_COMMANDS)
def test_a_run_is_a_policy(there: Rlhf, finished_run: Path, name: str) -> None:
    ran = there(*filled(POLICY_COMMANDS[name], finished_run))
    assert ran.code == 0, ran.err
    if POLICY_COMMANDS[name].endswith("--dry-run --json"):
        assert str(finished_run / "final") in ran.out


@pytest.mark.parametrize("name", REWARD_COMMANDS)
def test_a_run_is_a_reward(there: Rlhf, reward_run: Path, name: str) -> None:
    ran = there(*filled(REWARD_COMMANDS[name], reward_run))
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("name", [n for n in POLICY_COMMANDS if "--dry-run" not in POLICY_COMMANDS[n]])
def test_no_model_is_one_error(there: Rlhf, name: str) -> None:
    ran = there(*filled(POLICY_COMMANDS[name], "./nowhere"))
    assert ran.code == 2
    assert "there is no model folder './nowhere'" in ran.err
    assert "a run (its final model), a checkpoint, the name of a run" in ran.err


def test_what_a_path_stands_for(tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = finished_run / "checkpoints" / "step-000003"
    assert model_folder(str(finished_run)) == model_folder(str(finished_run / "final")) == str(finished_run / "final")
    assert model_folder(str(step)) == model_folder(str(step / "model")) == str(step / "model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(finished_run)
    assert model_folder("mine") == "runs/mine/final"
    assert weights_digest("mine") == weights_digest(str(finished_run / "final")) == weights_digest(str(step)) != ""
    for other in ("pocket", "org/name", "gpt2", "x.gguf", "./nowhere"):
        assert model_folder(other) == other
    (tmp_path / "mine").mkdir()
    assert model_folder("mine") == "mine", "a folder of that name comes first"


def test_a_checkpoint_is_a_policy(rlhf: Rlhf, finished_run: Path) -> None:
    outs = [
        rlhf("generate", "--model", model, "--prompt", "What is 2 + 3?", "--max-tokens", 4, "--json").out
        for model in (finished_run, finished_run / "checkpoints" / "step-000003")
    ]
    assert outs[0] == outs[1] != ""


def test_prompts_are_written_as_the_run_wrote_them(tmp_path: Path, finished_run: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    plan = json.loads((run / "plan.json").read_text())
    plan["config"]["model"]["prompt_format"] = "raw"
    (run / "plan.json").write_text(json.dumps(plan))
    assert planned_format(str(run)) == planned_format(str(run / "final")) == "raw"
    assert planned_format(str(run / "checkpoints" / "step-000003")) == "raw"
    assert planned_format("pocket") == planned_format(str(tmp_path)) == "auto"


def test_a_run_without_a_final_model_names_its_checkpoint(tmp_path: Path, finished_run: Path, rlhf: Rlhf) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    shutil.rmtree(run / "final")
    ran = rlhf("generate", "--model", run, "--prompt", "x")
    assert ran.code == 2
    assert f"run '{run}' has no final model" in ran.err
    assert str(run / "checkpoints" / "step-000003") in ran.err


def test_a_hub_id_comes_from_its_local_copy(rlhf: Rlhf, hub_copy: str) -> None:
    args = ("generate", "--prompt", "What is 2 + 3?", "--max-tokens", 4, "--json")
    assert rlhf(*args, "--model", hub_copy).out == rlhf(*args).out != ""


def test_a_hub_that_was_not_asked_is_said_so(rlhf: Rlhf, hub_copy: str) -> None:
    ran = rlhf("generate", "--model", "org/other", "--prompt", "x")
    assert ran.code == 2
    assert "there is no local copy of a model of that name from the Hugging Face hub" in ran.err
    assert "HF_HUB_OFFLINE is set: nobody asked the hub" in ran.err
    assert "a run (its final model)" in ran.err
    assert "the Hugging Face hub gives no" not in ran.err


@pytest.mark.slow
def test_an_adapter_is_a_policy_bit_for_bit(tmp_path: Path, quick: tuple[str, ...], call: Rlhf, hub_copy: str) -> None:
    import torch

    run = tmp_path / "run"
    ran = call(*quick, "--set", "model.lora.r=2", "--set", "trainer.steps=1", "--model", hub_copy, "--run-dir", run)
    assert ran.code == 0, ran.err
    final = load_policy(ModelConfig(path=str(run))).model.state_dict()
    loaded = load_policy(ModelConfig(path=str(run / "checkpoints" / "step-000001")))
    assert loaded.tokenizer.chat_template
    assert all(torch.equal(value, final[name]) for name, value in loaded.model.state_dict().items())
    start = load_policy(ModelConfig(path=hub_copy)).model.state_dict()
    assert any(not torch.equal(value, start[name]) for name, value in final.items())

"""A model made of the pocket model has the recipe of the pocket model, wherever it lies and whatever it is called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.config.load import resolve, resolve_labelled, validate
from rlhf_core.plugins.registry import Registry
from rlhf_plugin_pocket import weights_path
from rlhf_plugin_preflight.origin import origins


@pytest.fixture
def finetuned(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "sft" / "final"
    shutil.copytree(weights_path(), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))  # saved again, as transformers does
    return folder


def trainer_of(path: object, *settings: str, algo: str = "grpo") -> dict[str, Any]:
    sugar = {"trainer": {"name": algo}, "model": {"path": str(path)}}
    return resolve(Registry(), sugar=sugar, settings=settings).model_dump(mode="json")["trainer"]


@pytest.mark.parametrize("algo", ["grpo", "rloo", "ppo", "dpo", "kto", "iterative_dpo", "sft"])
def test_same_settings_as_the_pocket_model(finetuned: Path, algo: str) -> None:
    assert trainer_of(finetuned, algo=algo) == trainer_of("pocket", algo=algo)


def test_a_run_goes_wherever_its_final_model_goes(finetuned: Path) -> None:
    (finetuned.parent / "plan.json").write_text("{}")
    assert trainer_of(finetuned.parent) == trainer_of("pocket")


def test_the_origin_says_so(finetuned: Path) -> None:
    sugar = {"trainer": {"name": "grpo"}, "model": {"path": str(finetuned)}}
    rows = {row.key: row for row in origins(resolve_labelled(Registry(), sugar=sugar))}
    origin = "recipe of algorithm grpo for pocket, which {} was made of"
    assert rows["trainer.rollout_batch_size"].origin == origin.format(finetuned)
    learning_rate = trainer_of("pocket")["optimizer"]["learning_rate"]
    assert rows["trainer.optimizer.learning_rate"].value == learning_rate != 1e-5
    assert "pocket+ensemble" in rows["trainer.kl.coefficient"].origin


def test_another_shape_or_another_vocabulary_is_another_model(finetuned: Path) -> None:
    default = trainer_of("nobody/elsewhere")
    assert default["optimizer"]["learning_rate"] == 1e-5
    config = json.loads((finetuned / "config.json").read_text())
    (finetuned / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    assert trainer_of(finetuned) == default
    (finetuned / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((finetuned / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["another"] = tokenizer["model"]["vocab"].pop(" the", 5)
    (finetuned / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert trainer_of(finetuned) == default
    shutil.rmtree(finetuned)
    assert trainer_of(finetuned) == default, "what is not there is refused later, not here"


def test_a_plan_stays_as_it_is_nulls_included(finetuned: Path) -> None:
    sugar = {"trainer": {"name": "ppo"}, "model": {"path": str(finetuned)}}
    plan = resolve(Registry(), sugar=sugar).model_dump(mode="json")
    plan["trainer"] |= {"train_batch_size": None, "steps": 100}
    again = validate(Registry(), yaml.safe_load(yaml.safe_dump(plan)))
    assert again.model_dump(mode="json") == plan

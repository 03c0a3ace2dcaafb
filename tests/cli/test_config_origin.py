"""`rlhf config show --origin`: every value, and the one layer that decided it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Rlhf = Callable[..., Any]


def shown(rlhf: Rlhf, *options: object) -> dict[str, tuple[Any, str]]:
    out = rlhf("config", "show", *options, "--origin", "--json")
    assert out.code == 0, out.err
    return {key: (row["value"], row["origin"]) for key, row in json.loads(out.out).items()}


def flat(value: Any, key: str = "") -> Mapping[str, Any]:
    """Leaves of a plan's configuration by dotted key."""
    if isinstance(value, dict) and value:
        pairs = [(k, v) for name, item in value.items() for k, v in flat(item, f"{key}.{name}").items()]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        pairs = [(k, v) for at, item in enumerate(value) for k, v in flat(item, f"{key}.{at}").items()]
    else:
        return {key.removeprefix("."): value}
    return dict(pairs)


def test_each_layer_is_named(rlhf: Rlhf, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {eval_every: 3, steps: 5}\nreward: {members: 4}\ntrackers: [tensorboard]\n")
    rows = shown(rlhf, "--algo", "dapo", "--config", file, "--set", "trainer.steps=7", "--seed", 2)
    expected = {
        "seed": (2, "--seed"),
        "trainer.name": ("dapo", "--algo"),
        "trainer.steps": (7, "--set"),
        "trainer.eval_every": (3, f"config {file}"),
        "trainer.micro_batch_size": (64, "recipe of algorithm dapo for pocket"),
        "trainer.kl.coefficient": (0.15, "recipe of algorithm dapo for pocket+ensemble"),
        "trainer.overlong.cache": (0.2, "recipe of loss dapo"),
        "trainer.overlong.weight": (1.0, "rlhf_core/rl/settings.py:OverlongSettings"),
        "trainer.optimizer.eps": (1e-8, "rlhf_core/training/config.py:OptimizerSettings"),
        "loss.name": ("dapo", "companion of algorithm dapo"),
        "loss.clip_range_high": (0.28, "rlhf_plugin_grpo/loss_config.py:DapoLossConfig"),
        "loss.clip_range": (0.2, "rlhf_plugin_grpo/loss_config.py:GrpoClipConfig"),
        "reward.name": ("ensemble", "companion of algorithm dapo"),
        "reward.members": (4, f"config {file}"),
        "rollout.name": ("native", "companion of every algorithm"),
        "dataset.sources.0.source.subset": ("assistant", "companion of algorithm dapo"),
        "trackers.0.name": ("tensorboard", f"config {file}"),
        "trackers.0.flush_seconds": (30, "rlhf_plugin_tensorboard/config.py:TensorBoardConfig"),
    }
    assert {key: rows.get(key) for key in expected} == expected


def test_a_sections_default_belongs_to_the_class_that_declares_it(rlhf: Rlhf) -> None:
    rows = shown(rlhf, "--algo", "sft", "--set", "trainer.optimizer.learning_rate=1e-3")
    assert rows["trainer.optimizer.learning_rate"] == (1e-3, "--set")
    assert rows["trainer.optimizer.schedule"] == ("cosine", "rlhf_plugin_sft/config.py:SftConfig")


def test_a_data_set_keeps_its_origin_through_its_short_forms(rlhf: Rlhf) -> None:
    options = ("--algo", "sft", "--dataset", "rows.jsonl", "--set", "dataset.columns={prompt: q}")
    rows = shown(rlhf, *options, "--set", "dataset.limit=5")
    assert rows["dataset.sources.0.source.path"] == ("rows.jsonl", "--dataset")
    assert rows["dataset.sources.0.columns.prompt"] == ("q", "--set")
    assert rows["dataset.limit"] == (5, "--set")
    mixture = "dataset={sources: [pocket/assistant, {name: rows.jsonl, weight: 2}]}"
    rows = shown(rlhf, "--algo", "sft", "--set", mixture)
    assert rows["dataset.sources.0.source.subset"] == ("assistant", "--set")
    assert rows["dataset.sources.1.weight"] == (2.0, "--set")
    assert rows["dataset.sources.0.weight"] == (1.0, "rlhf_core/data/settings.py:SourceSettings")


def test_execution_that_an_option_allows(rlhf: Rlhf) -> None:
    options = ("--algo", "grpo", "--reward", "mbpp", "--dataset", "rows.jsonl", "--unsafe-local-execution")
    rows = shown(rlhf, *options)
    allowed = {key: row for key, row in rows.items() if key.endswith("unsafe_local_execution")}
    assert allowed
    assert set(allowed.values()) == {(True, "--unsafe-local-execution")}


@pytest.mark.parametrize("options", [("grpo",), ("iterative_dpo",), ("prm",), ("grpo", "--reward", "judge")])
def test_the_values_are_those_of_the_plan(rlhf: Rlhf, options: tuple[str, ...]) -> None:
    data = json.loads(rlhf("config", "show", "--algo", *options, "--json").out)
    rows = shown(rlhf, "--algo", *options)
    assert {key: value for key, (value, _) in rows.items()} == flat(data)
    assert all(origin for _, origin in rows.values())


def test_lines_for_people(rlhf: Rlhf) -> None:
    lines = rlhf("config", "show", "--algo", "sft", "--set", "trainer.epochs=2", "--origin").out.splitlines()
    assert "trainer.epochs = 2.0   # --set" in lines
    assert 'strategy.name = "auto"   # companion of every algorithm' in lines

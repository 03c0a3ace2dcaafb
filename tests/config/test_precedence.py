"""Which of several settings counts: the defaults of classes < the algorithm's recipe < files < options < ``--set``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config.load import resolve
from rlhf_core.config.recipe import Setting, fill, merge_settings
from rlhf_core.plugins.registry import Registry

REWARD = {"name": "verifier", "workers": 2}


@pytest.mark.parametrize(
    ("lower", "upper", "merged"),
    [
        ({"seed": 1, "threads": 2}, {"seed": 3}, {"seed": 3, "threads": 2}),
        ({"reward": REWARD}, {"reward": {"workers": 4}}, {"reward": {"name": "verifier", "workers": 4}}),
        ({"reward": REWARD}, {"reward": {"name": "ensemble"}}, {"reward": {"name": "ensemble"}}),
        ({"reward": REWARD}, {"reward": "ensemble"}, {"reward": {"name": "ensemble"}}),
        ({"reward": REWARD}, {"reward": None}, {"reward": None}),
    ],
)
def test_the_upper_layer_wins_and_another_component_replaces_all(lower: Any, upper: Any, merged: Any) -> None:
    assert merge_settings(lower, upper) == merged


@pytest.mark.parametrize(
    ("given", "default", "filled"),
    [
        ({"seed": 1}, {"seed": 3, "threads": 2}, {"seed": 1, "threads": 2}),
        ({"seed": None}, {"seed": 3}, {"seed": 3}),
        ({"seed": Setting(None, "--set")}, {"seed": 3}, {"seed": 3}),
        ({"reward": {"workers": 4}}, {"reward": REWARD}, {"reward": {"name": "verifier", "workers": 4}}),
        ({"reward": "ensemble"}, {"reward": REWARD}, {"reward": {"name": "ensemble"}}),
        ({"dataset": {"sources": []}}, {"dataset": {"limit": 4}}, {"dataset": {"sources": []}}),
    ],
)
def test_a_default_fills_what_is_left_open(given: Any, default: Any, filled: Any) -> None:
    assert fill(given, default) == filled


def test_recipe_then_files_in_order_then_options_then_set(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("trainer: {name: grpo, steps: 1, group_size: 2, eval_samples: 3}\nseed: 1\nthreads: 1\n")
    second.write_text("trainer: {steps: 2, group_size: 4}\nseed: 2\n")
    registry = Registry(disabled=())
    recipe = resolve(registry, sugar={"trainer": "grpo"}, settings=["reward=verifier"])
    config = resolve(
        registry, files=[first, second], sugar={"seed": 3, "reward": "verifier"}, settings=["trainer.group_size=8"]
    )
    said = (config.trainer.steps, config.trainer.group_size, config.trainer.eval_samples, config.seed, config.threads)
    assert said == (2, 8, 3, 3, 1)
    assert config.trainer.optimizer == recipe.trainer.optimizer
    assert resolve(registry, files=[first], sugar={"reward": "verifier"}, settings=["seed=5", "seed=6"]).seed == 6

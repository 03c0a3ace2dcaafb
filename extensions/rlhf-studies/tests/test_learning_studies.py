"""The learning studies: that every setting in them exists, and how a table comes about."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlhf_core.config.load import resolve
from rlhf_core.plugins.registry import Registry
from rlhf_studies.arithmetic_algorithms.config import ArithmeticAlgorithmsConfig
from rlhf_studies.monitor_lead_time.run import damage
from rlhf_studies.smollm2_arithmetic.run import compare
from rlhf_study.runs import layered
from rlhf_study.tables import spread


@pytest.mark.parametrize("algorithm", ArithmeticAlgorithmsConfig().arms)
def test_the_settings_of_an_algorithm_are_its_own_but_for_what_is_shared(algorithm: str, tmp_path: Path) -> None:
    layers = ArithmeticAlgorithmsConfig().settings(algorithm, 3)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(layered(*layers)))
    config = resolve(Registry(disabled=()), files=[file])
    assert config.trainer.name == algorithm
    assert config.seed == 3
    assert config.trainer.updates_per_step == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert config.trainer.kl.coefficient == 0  # pyright: ignore[reportAttributeAccessIssue]
    assert [s.label for s in config.dataset.sources] == ["copy1", "copy2", "copy3", "copy4"]
    names = {"grpo": "grpo_clip", "ppo": "ppo_clip"}
    assert config.loss is not None
    assert config.loss.name == names.get(algorithm, algorithm)


def test_gain_and_its_interval() -> None:
    found = compare([False] * 80 + [True] * 20, [True] * 70 + [False] * 10 + [True] * 20)
    assert found["before"] == {"accuracy": 0.2, "interval": [0.133, 0.289]}, "Wilson's, as in any table of it"
    assert found["after"]["accuracy"] == 0.9
    assert found["gain"]["points"] == 70
    low, high = found["gain"]["interval"]
    assert (low, high) == (pytest.approx(61.0, abs=0.1), pytest.approx(79.0, abs=0.1))


def test_a_run_is_hacked_where_gold_falls_and_stays_down() -> None:
    assert damage([0.5, 0.5, 0.5, 0.8, 0.8, 0.8, 0.6, 0.6, 0.6]) == 7, "the three-step mean is 0.733 there"
    assert damage([0.5, 0.5, 0.5, 0.8, 0.8, 0.8, 0.6, 0.8, 0.8, 0.8]) is None, "it recovers"
    assert damage([0.5, 0.6, 0.7, 0.8]) is None


def test_a_missing_figure_is_no_zero() -> None:
    assert spread([0.5, None]) == "-"
    assert spread([0.5, 0.7]) == "0.600 (0.500 to 0.700)"
    assert spread([0.5]) == "0.500"

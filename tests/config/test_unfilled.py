"""``???`` in a configuration: refused by its key, and filled by any later layer, which keeps what stands beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.config.load import resolve
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import ConfigError

OPEN = {
    "trainer": {"name": "sft", "optimizer": {"learning_rate": "???"}},
    "model": {"path": "???"},
    "dataset": {"name": "???", "columns": {"prompt": "question"}},
    "seed": "???",
}


def written(tmp_path: Path, data: Any) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def test_every_place_that_is_not_filled_in_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not filled in") as caught:
        resolve(Registry(), files=[written(tmp_path, OPEN)])
    named = caught.value.what.removeprefix("not filled in: ").split(", ")
    assert sorted(named) == ["dataset.name", "model.path", "seed", "trainer.optimizer.learning_rate"]


@pytest.mark.parametrize("section", ["model", "dataset", "reward", "trainer"])
def test_a_whole_section_may_be_open(tmp_path: Path, section: str) -> None:
    with pytest.raises(ConfigError, match=f"not filled in: {section}"):
        resolve(Registry(), files=[written(tmp_path, {"trainer": {"name": "sft"}, section: "???"})])


def test_a_later_layer_fills_it_and_keeps_the_settings_beside_it(tmp_path: Path) -> None:
    run = resolve(
        Registry(),
        files=[written(tmp_path, OPEN)],
        sugar={"model": {"path": "some/model"}, "dataset": {"name": "jsonl", "path": "rows.jsonl"}},
        settings=["seed=3", "trainer.optimizer.learning_rate=0.001"],
    )
    (source,) = run.dataset.sources
    assert (run.model.path, run.seed, run.trainer.optimizer.learning_rate) == ("some/model", 3, 0.001)
    assert (source.source.name, source.columns) == ("jsonl", {"prompt": "question"})


def test_a_text_that_holds_question_marks_is_a_value(tmp_path: Path) -> None:
    data = {"trainer": {"name": "grpo", "sampling": {"stop": ["???"]}}, "dataset": {"name": "pocket"}}
    run = resolve(Registry(), files=[written(tmp_path, {**data, "model": {"path": "what???"}})])
    assert (run.trainer.sampling.stop, run.model.path) == (("???",), "what???")

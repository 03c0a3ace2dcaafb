"""What the tracker writes is what TensorBoard reads back."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlhf_core.config import BuildContext, PluginError
from rlhf_plugin_tensorboard.config import TensorBoardConfig


def context(run_dir: Path | None) -> BuildContext:
    fields: dict[str, Any] = {"run_dir": run_dir}
    required = [
        f.name
        for f in dataclasses.fields(BuildContext)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return BuildContext(**dict.fromkeys(required), **fields)


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_metric_is_read_back_with_its_step(tmp_path: Path) -> None:
    tracker = TensorBoardConfig().build(context(tmp_path))
    tracker.log(1, {"reward/mean": 0.25, "kl": 0.0})
    tracker.log(2, {"reward/mean": 0.5})
    tracker.close()
    assert read(tmp_path / "tensorboard") == {"reward/mean": [(1, 0.25), (2, 0.5)], "kl": [(1, 0.0)]}


def test_log_dir_wins_over_the_run_folder(tmp_path: Path) -> None:
    tracker = TensorBoardConfig(log_dir=tmp_path / "elsewhere").build(context(tmp_path / "run"))
    tracker.log(1, {"loss": 2.0})
    tracker.close()
    assert read(tmp_path / "elsewhere") == {"loss": [(1, 2.0)]}
    assert not (tmp_path / "run").exists()


def test_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    first = TensorBoardConfig().build(context(tmp_path))
    for step in (1, 2, 3):
        first.log(step, {"loss": float(step)})
    first.close()
    resumed = TensorBoardConfig().build(context(tmp_path))
    resumed.log(2, {"loss": 20.0})
    resumed.log(3, {"loss": 30.0})
    resumed.close()
    assert read(tmp_path / "tensorboard")["loss"] == [(1, 1.0), (2, 20.0), (3, 30.0)]


def test_metrics_that_are_not_finite_are_left_out_and_counted(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    tracker = TensorBoardConfig().build(ctx)
    tracker.log(1, {"loss": float("nan"), "kl": float("inf"), "entropy": 1.0})
    tracker.close()
    assert read(tmp_path / "tensorboard") == {"entropy": [(1, 1.0)]}
    assert ctx.report["tensorboard/not_finite"] == 2


def test_close_twice_and_without_metrics(tmp_path: Path) -> None:
    tracker = TensorBoardConfig().build(context(tmp_path))
    tracker.close()
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_missing_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rlhf_plugin_tensorboard.tracker", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(PluginError, match="pip install tensorboard"):
        TensorBoardConfig().build(context(tmp_path))


def test_no_folder_is_an_error_that_shows_the_setting() -> None:
    with pytest.raises(PluginError, match="log_dir"):
        TensorBoardConfig().build(context(None))

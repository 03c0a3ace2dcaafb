"""The trackers of docs/trackers.md, with the real libraries where they are installed."""

from __future__ import annotations

import importlib
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_testing import check_tracker, make_context
from tests.docs.blocks import ALL

BLOCKS = [block.text for block in ALL if block.page == "docs/trackers.md" and block.language == "python"]


@pytest.fixture
def config_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``config_of("trackio", project="sums")``: the library must be there, and the block becomes a module."""

    def make(library: str, **settings: Any) -> Any:
        pytest.importorskip(library)
        module = f"example_{library}"
        (block,) = [text for text in BLOCKS if f'name: str = "{library}"' in text]
        (tmp_path / f"{module}.py").write_text(block)
        monkeypatch.syspath_prepend(tmp_path)
        return getattr(importlib.import_module(module), f"{library.capitalize()}Config")(**settings)

    return make


def tracked(config: Any, folder: Path) -> None:
    """A run of four steps that was interrupted after two, and another of the same name."""
    check_tracker(config)
    for start, name in ((1, "a/run"), (3, "a/run"), (1, "b/run")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        tracker = config.build(replace(make_context(), run_dir=folder / name))
        for step in (start, start + 1):
            tracker.log(step, {"reward/mean": step / 2, "kl": math.nan})
        tracker.close()


def test_each_takes_at_most_25_lines_of_code() -> None:
    """Imports, blank lines and docstrings aside."""
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        lines = [line.strip() for line in block.splitlines()]
        code = [x for x in lines if x and not x.startswith(("import ", "from ", '"""'))]
        assert len(code) <= 25, code


def test_trackio(config_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # it reads this once, when it is imported
    tracked(config_of("trackio", project="sums"), tmp_path)
    with closing(sqlite3.connect(tmp_path / "trackio" / "sums.db")) as base:
        rows = base.execute("select run_name, step, metrics from metrics where run_name like 'run-%'").fetchall()
    steps = {name: [step for run, step, _ in rows if run == name] for name, _, _ in rows}
    assert sorted(map(sorted, steps.values())) == [[1, 2], [1, 2, 3, 4]]


@pytest.mark.slow
def test_mlflow(config_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    tracked(config_of("mlflow", uri=uri), tmp_path)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("rlhf").experiment_id
    runs = [r for r in client.search_runs([experiment]) if r.data.tags["rlhf.folder"].startswith(str(tmp_path))]
    read = [[(m.step, m.value) for m in client.get_metric_history(r.info.run_id, "reward/mean")] for r in runs]
    assert sorted(read) == [[(1, 0.5), (2, 1.0)], [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]]


@pytest.mark.slow
def test_swanlab(config_of: Callable[..., Any], tmp_path: Path) -> None:
    tracked(config_of("swanlab", mode="offline"), tmp_path)
    for name, parts in (("a", 2), ("b", 1)):
        files = [*(tmp_path / name / "run" / "swanlab").glob("run-*/run-*.swanlab")]
        assert len(files) == parts
        assert all(b"reward/mean" in file.read_bytes() for file in files)
        assert len({file.stem for file in files}) == 1

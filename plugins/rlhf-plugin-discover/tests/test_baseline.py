"""The search that no model drives, through the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_discover.kissing.check import check_kissing
from rlhf_plugin_discover.tasks import shipped

Command = Callable[..., tuple[int, str]]
QUICK = ("--set", "verifier.sandbox.timeout_s=5", "--set", "workers=1")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def points(folder: Path) -> list[list[int]]:
    space: dict[str, Any] = {}
    exec((folder / "best.py").read_text(), space)
    return space["points"]


def test_the_baseline_keeps_its_result_without_a_run_dir(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dimensions = ("--set", "verifier.dimensions=4")
    assert command("discover", "kissing", "--baseline", "--seconds", "0.2", *QUICK, *dimensions)[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert summary(folder)["best"] == len(points(folder)) == 24
    assert "## Reflection\n\nNo model drove this search" in (folder / "report.md").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_baseline_is_far_above_the_best_laminated_lattice(command: Command, tmp_path: Path) -> None:
    assert "kissing" in shipped()
    assert command("discover", "kissing", "--baseline", "--run-dir", tmp_path)[0] == 0
    assert summary(tmp_path)["valid"]
    assert len(points(tmp_path)) == summary(tmp_path)["best"] >= 566 > 438
    assert check_kissing(points(tmp_path), 11).valid

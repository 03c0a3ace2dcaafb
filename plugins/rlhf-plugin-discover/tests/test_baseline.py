"""The search that no model drives, through the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_discover.kissing.check import check_kissing
from rlhf_plugin_discover.kissing.search import search
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


def test_the_baseline_of_11_dimensions_is_ganzhinovs(command: Command, tmp_path: Path) -> None:
    assert "kissing" in shipped()
    assert command("discover", "kissing", "--baseline", "--run-dir", tmp_path)[0] == 0
    assert summary(tmp_path)["valid"]
    assert len(points(tmp_path)) == summary(tmp_path)["best"] == 592
    assert check_kissing(points(tmp_path), 11).valid


@pytest.mark.long
@pytest.mark.slow
def test_the_search_is_far_above_the_best_laminated_lattice() -> None:
    found = search(11, seconds=60)
    assert len(found) >= 566 > 438
    assert check_kissing(found, 11).valid


HEXAGON = [[2, 0], [1, [0, 1]], [-1, [0, 1]], [-2, 0], [-1, [0, -1]], [1, [0, -1]]]


def test_coordinates_with_the_root_of_3_are_compared_exactly() -> None:
    assert check_kissing(HEXAGON, 2).valid
    large = 10**40
    huge = [[[x[0] * large, x[1] * large] if isinstance(x, list) else x * large for x in row] for row in HEXAGON]
    assert check_kissing(huge, 2).valid
    huge[0][0] += 1  # one part in 10^40 too long
    assert check_kissing(huge, 2).reason.startswith("squared distance")
    assert check_kissing([[1, [0, 0]], [[0, 0], 0]], 2).reason == "vector 1 is the zero vector"
    assert "is not an integer" in check_kissing([[1, [1, 2, 3]]], 2).reason
    assert "is not an integer" in check_kissing([[1, [1, 0.5]]], 2).reason

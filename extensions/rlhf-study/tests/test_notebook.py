"""What notebooks share: a study that another distribution brings, before and after it is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

from rlhf_core.types.errors import RlhfError
from rlhf_study import notebook
from rlhf_study.record import claims
from rlhf_study.runs import offering

CONFIG = """
from rlhf_study.ablation.config import AblationConfig, Claim


class HeightsConfig(AblationConfig):
    \"\"\"Of trees.\"\"\"

    name: str = "heights"
    claims: tuple[Claim, ...] = (Claim("002:1", "Oaks are taller", "oak", "ash", 1),)
"""
PANELS: notebook.Panels = {
    "height": notebook.last("height"),
    "growth": notebook.curves("height"),
}
SMOKE: Mapping[str, notebook.Series] = {"height": {"seedling": 0.5}}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a study that is installed; figures are drawn without a screen."""
    entries = "[rlhf.study]\nheights = heights_of_trees.heights.config:HeightsConfig\n"
    folder = offering(tmp_path, entries) / "heights_of_trees" / "heights"
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(CONFIG)
    (folder / "README.md").write_text("# How tall?\n\n`rlhf study run heights`: **oaks**, see [table](result.md).\n")
    monkeypatch.syspath_prepend(folder.parents[1])
    pyplot.switch_backend("Agg")
    yield folder
    pyplot.close("all")


def record(folder: Path, heights: Mapping[str, tuple[float, float]]) -> None:
    """Two seeds, each a first and a last height of two trees."""
    seeds = {
        str(seed): {tree: {"height": [[0, 10], [0.0, 1.0], [0.0, of[seed]]]} for tree, of in heights.items()}
        for seed in (0, 1)
    }
    verdict = {"line": "002:1", "says": "Oaks are taller", "here": "by 2", "verdict": "reproduced", "command": ""}
    (folder / "result.json").write_text(json.dumps({"seeds": seeds, "verdicts": [verdict]}))
    (folder / "result.md").write_text("a table\n")


def test_a_claim_may_name_no_line(study: Path) -> None:
    rows = [{"line": line, "says": line, "here": "", "verdict": ""} for line in ("002:1", "", "a book")]
    (study / "result.json").write_text(json.dumps({"verdicts": rows}))
    assert [found.line for found in claims({"heights": "heights_of_trees.heights.config"})] == ["", "002:1", "a book"]


def titles() -> list[str]:
    return [axis.get_title() for axis in pyplot.gcf().axes]


def test_a_study_without_a_record_says_so_and_draws_the_smoke_result(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.show("heights", PANELS, smoke=SMOKE)
    said = capsys.readouterr().out
    assert said.startswith("Nothing is recorded of `heights` yet.\n\nThe picture is of the few steps above")
    assert "| 002:1 | Oaks are taller |  | not recorded yet |" in said
    assert titles() == ["height"]
    assert [bar.get_height() for bar in pyplot.gcf().axes[0].patches] == [0.5]


def test_a_recorded_study_is_drawn_and_compared(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(study, {"oak": (4.0, 6.0), "ash": (2.0, 4.0)})
    notebook.show("heights", PANELS, smoke=SMOKE, lines=("002:153",))
    said = capsys.readouterr().out
    assert "**How tall?**\n\n`rlhf study run heights`: **oaks**, see table." in said
    assert "| 002:1 | Oaks are taller | by 2 | reproduced |" in said
    assert "| 002:153 | " in said
    assert titles() == ["height", "growth"]
    bars, curves = pyplot.gcf().axes
    assert [bar.get_height() for bar in bars.patches] == [5.0, 3.0]
    assert [list(dots.get_ydata()) for dots in bars.lines] == [[4.0, 6.0], [2.0, 4.0]]
    assert list(curves.lines[0].get_ydata()) == [0.0, 5.0]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["oak", "ash"]


def test_a_study_that_is_not_installed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pyplot.switch_backend("Agg")
    notebook.show("no_such_study", PANELS)
    assert capsys.readouterr().out == "The study `no_such_study` is not installed.\n\n"
    assert pyplot.get_fignums() == []


def test_commands_print_return_json_and_fail_with_their_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert notebook.rlhf("study list") is None
    assert "baselines" in capsys.readouterr().out
    rows: list[dict[str, Any]] = notebook.rlhf("study list --json")
    assert "baselines" in {row["name"] for row in rows}
    assert capsys.readouterr().out == ""
    with pytest.raises(RlhfError, match="rlhf study ended with code 2"):
        notebook.rlhf("study show no_such_study")
    assert "no_such_study" in capsys.readouterr().err

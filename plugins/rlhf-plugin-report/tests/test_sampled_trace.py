"""A trace of some steps and completions is not shown as one of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlhf_core.cli.main import cli
from rlhf_core.data import read_jsonl
from rlhf_plugin_report.read import read_page
from rlhf_plugin_report.stored import open_run

from .conftest import page_of

ALL = "the trace has"


def sampled(run: Path, **settings: int) -> None:
    """Let the run be one that traced no prompt of its first step."""
    plan = json.loads((run / "plan.json").read_text())
    plan["config"]["trainer"] |= settings
    (run / "plan.json").write_text(json.dumps(plan))
    rows = [row for row in read_jsonl(run / "trace.jsonl") if row["event"] != "prompt" or row["step"] == 2]
    (run / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"trace_every": 2}, "those of steps that 2 divides; metrics are of all"),
        ({"trace_every": 0}, "none; metrics are of all"),
        ({"trace_completions": 8}, "the first groups, 8 completions at most; metrics are of all"),
    ],
)
def test_the_page_and_the_trace_say_what_was_not_traced(copy: Path, settings: dict[str, int], says: str) -> None:
    (one,) = read_page([open_run(str(copy))], 100).runs
    assert not [note for note in one.notes if ALL in note]
    sampled(copy, **settings)
    (one,) = read_page([open_run(str(copy))], 100).runs
    (note,) = one.notes
    assert ALL in note
    assert note.endswith(says)
    assert says in page_of(copy)
    shown = CliRunner().invoke(cli, ["trace", "show", str(copy), "--step", "1"], catch_exceptions=False).stdout
    assert says in shown
    assert ALL not in CliRunner().invoke(cli, ["trace", "show", str(copy), "--step", "2"]).stdout

"""A file of a run that holds another JSON value than a run writes is named; nothing fails on it later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_core.config.plan import Plan
from rlhf_core.runs.read import read_run
from rlhf_core.types.errors import RunDirError


@pytest.mark.parametrize("value", [5, [], "x", [1]])
@pytest.mark.parametrize("name", ["summary.json", "failure.json", "plan.json", "metrics.jsonl"])
def test_another_value_than_a_run_writes_is_refused(tmp_path: Path, name: str, value: object) -> None:
    plan = Plan({}, (), {}, 0, 1).to_json()
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 2.0}\n')
    assert read_run(tmp_path).steps == 1
    whole = {"plan.json": {**plan, "config": value}, "metrics.jsonl": {"step": "x" if value == 5 else value}}
    (tmp_path / name).write_text(json.dumps(whole.get(name, value)) + "\n")
    with pytest.raises(RunDirError, match="is damaged"):
        read_run(tmp_path)

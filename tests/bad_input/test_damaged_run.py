"""A file of a run that holds another JSON value than a run writes is named; nothing fails on it later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.config.plan import Plan
from rlhf_core.data.jsonl import read_record
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


TEXTS = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"train": 5, "heldout": []}',
    b'{"train": [[]], "heldout": []}',
    b"\xff",
    b"[" * 5000,
]


@pytest.mark.parametrize("text", TEXTS)
def test_rows_that_nobody_can_read_are_named_where_runs_are_compared(
    command: Callable[..., tuple[int, str]], finished_run: Path, tmp_path: Path, text: bytes
) -> None:
    other = Path(shutil.copytree(finished_run, tmp_path / "other"))
    (other / "rows.json").write_bytes(text)
    code, err = command("runs", "compare", finished_run, other)
    assert code == 2
    assert "rows.json' is damaged" in err
    assert "fix: remove it" in err
    (other / "rows.json").unlink()
    assert command("runs", "compare", finished_run, other)[0] == 0


def test_a_record_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "rows.json").mkdir()
    with pytest.raises(RunDirError, match=r"rows\.json' cannot be read"):
        read_record(tmp_path / "rows.json")

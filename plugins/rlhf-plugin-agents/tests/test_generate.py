"""`rlhf data generate agentic`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from rlhf_core.cli.main import cli


def test_right_trajectories_become_rows_for_sft_and_a_second_call_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "agentic.jsonl"
    words = ["data", "generate", "agentic", "--output", str(output), "--backend", "scripted", "--per-task", "2"]
    shown = CliRunner().invoke(cli, [*words, "--dry-run"])
    assert (shown.exit_code, len(shown.output.splitlines()), output.exists()) == (0, 17, False)
    first = CliRunner().invoke(cli, words)
    assert first.exit_code == 0, first.output
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    kinds = [row["id"].split("/")[0] for row in rows]
    assert [kinds.count(k) for k in ("tool_use", "multi_step", "failure_recovery")] == [8, 6, 3]  # equal plays once
    assert "8 tasks, 16 plays, 16 right, 8 of them different" in first.output
    several = next(row for row in rows if row["id"].startswith("multi_step"))
    assert [m["role"] for m in several["messages"][-2:]] == ["tool", "assistant"]
    assert {c["function"]["name"] for m in several["messages"] for c in m.get("tool_calls", ())} <= {
        t["function"]["name"] for t in several["tools"]
    }
    plays = tmp_path / "agentic.jsonl.plays" / "tool_use" / "rows.jsonl"
    plays.write_text("".join(plays.read_text().splitlines(keepends=True)[:5]))
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == [row["id"] for row in rows]
    misspelled = CliRunner().invoke(cli, [*words, "--set", "backnd.script=wrong"])
    assert "backnd" in str(misspelled.exception), "a setting that nobody reads is refused"
    wrong = tmp_path / "wrong.jsonl"
    words = ["data", "generate", "agentic", "--output", str(wrong), "--backend", "scripted"]
    assert CliRunner().invoke(cli, [*words, "--set", "backend.script=wrong"]).exit_code == 1
    assert not wrong.exists(), "no file that nothing can be trained on"

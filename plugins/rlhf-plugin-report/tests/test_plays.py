"""Plays of a run's benchmarks are on its page, turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_plugin_report.plays import plays_of

from .conftest import data_of, page_of

HOSTILE = "</script><img src=x>"


def play(version: int, task: str = "tool_use/1", **changes: Any) -> dict[str, Any]:
    call = {"id": "c0", "type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": HOSTILE, "tool_call_id": "c0", "name": "search"},
        {"role": "assistant", "content": "Final answer: 1889"},
    ]
    row = {"policy_version": version, "benchmark": "agentbench_mini", "agent": "react", "task": task, "trial": 0}
    return {**row, "tokens": 40, "value": 1.0, "right": True, "process": 1.0, "detail": "wanted: 1889", "calls": 1,
            "answer": "1889", "stop_reason": "answer", "seconds": 0.1, "messages": messages, **changes}  # fmt: skip


def test_transcripts_of_the_first_and_the_latest_evaluation_are_on_the_page(copy: Path) -> None:
    rows = [play(0, value=None, right=None), play(1), play(2, value=0.0), play(2), {"benchmark": 7}]
    (copy / "plays.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"torn')
    page = page_of(copy)
    assert HOSTILE not in page
    first, last = (row for row in data_of(page) if row.get("play") == "agentbench_mini")
    assert (first["step"], first.get("score"), first["status"]) == (0, None, "missing")
    assert (last["step"], last["score"], last["id"]) == (2, 1.0, "agentbench_mini/tool_use/1")  # played twice
    assert [turn["role"] for turn in last["turns"]] == ["user", "assistant", "tool", "assistant"]
    assert last["turns"][1]["calls"] == [["search", '{"query": "x"}']]
    assert "1 plays of benchmarks between their first and latest evaluation" in page
    assert len(data_of(page)) > 2, "beside the completions"


def test_a_run_without_plays_says_nothing() -> None:
    assert plays_of([]) == ([], "")

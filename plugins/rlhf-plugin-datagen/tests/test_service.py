"""Preferences judged through the real client of a service that fails: a test server that speaks its API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import read_jsonl
from rlhf_plugin_judge.stand_in import Service, StandIn

pytestmark = [
    pytest.mark.usefixtures("rule_judge"),
    pytest.mark.skipif(find_spec("anthropic") is None, reason="anthropic is not installed"),
]


def shorter(body: Mapping[str, Any]) -> str:
    """Prefers the shorter response, wherever it stands."""
    text = str(body["messages"][0]["content"])
    a, b = (re.search(f"<response_{x}-\\w+>\n(.*?)\n</response_{x}-", text, re.DOTALL) for x in "ab")
    assert a is not None
    assert b is not None
    return json.dumps({"better": "A" if len(a[1]) < len(b[1]) else "B", "why": "principle 6"})


@pytest.mark.slow
def test_a_failing_service_costs_no_row_and_a_rerun_nothing(
    tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789")
    prompts, out, again, capped = (
        tmp_path / name for name in ("questions.jsonl", "out.jsonl", "again.jsonl", "cap.jsonl")
    )
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": f"Question {i}?"}) + "\n" for i in range(16)))
    with StandIn(Service(answer=shorter, faults={"429": 0.2, "500": 0.1, "prose": 0.1})) as server:
        shared = (
            "data",
            "generate",
            "preferences",
            "--generator",
            "rule",
            "--judge",
            "anthropic",
            "--set",
            f"base_url={server.url}",
            "--set",
            "backoff_s=0.01",
            "--set",
            "max_attempts=30",
            "--dataset",
            prompts,
            "--batch-size",
            5,
        )
        for count in (6, 16):  # stopped after six, gone on with
            code, err = command(*shared, "--count", count, "--output", out)
            assert code == 0, err
        requests_before = server.service.seen["arrivals"]
        code, err = command(*shared, "--output", again)
        assert code == 0, err
        assert server.service.seen["arrivals"] == requests_before  # every answer was kept
        code, err = command(*shared, "--set", "max_cost_usd=0.000001", "--set", "cache=false", "--output", capped)
        assert code == 1
        assert "stopped: nothing of this batch was answered" in err
        assert server.service.seen["arrivals"] == requests_before
    assert server.service.seen["429"] > 0
    rows, left_out = (list(read_jsonl(p)) for p in (out, out.with_name("out.jsonl.left_out.jsonl")))
    assert sorted(r["id"] for r in (*rows, *left_out)) == sorted(f"questions/{i}" for i in range(16))
    assert len(rows) > 6
    assert all(len(r["chosen"]) <= len(r["rejected"]) for r in rows)
    assert sum(r["usage"]["cost_usd"] for r in rows) > 0
    rerun_rows = list(read_jsonl(again))
    assert [(r["id"], r["chosen"], r["why"]) for r in rerun_rows] == [(r["id"], r["chosen"], r["why"]) for r in rows]
    usages = [r["usage"] for r in rerun_rows]
    assert all(u["cached"] >= 2 for u in usages)
    assert sum(u["cost_usd"] for u in usages) < sum(r["usage"]["cost_usd"] for r in rows)
    assert not list(read_jsonl(capped))

"""Published claims: what is claimed, what a difference is called, and a small table that goes on where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts.real import agent_claims as study
from scripts.real._claims import CLAIMS, Claim


def test_every_published_table_is_asked() -> None:
    points = {(c.suite, c.category, c.first, c.second): c.points for c in CLAIMS}
    assert points["agentbench_generated", "multi_step", "plan_and_execute", "multi_agent"] == 16.7
    assert points["gaia_mini", "level 1", "zero_shot", "react"] == 10
    assert points["code_debug", "hard", "zero_shot", "code_executor"] == 41.7
    assert points["chains", "level 8", "multi_agent", "scratchpad"] == 30
    assert len(points) == len(CLAIMS) == 9 + 6 + 3 + 4


@pytest.mark.parametrize(
    ("points", "low", "high", "tasks", "word"),
    [
        (10, 2, 15, 200, "reproduced"),
        (10, -2, 15, 200, "not resolvable here"),
        (10, -30, 30, 200, "not resolvable here"),
        (10, -9, 8, 200, "contradicted"),
        (10, -40, 8, 200, "not resolvable here"),
        (0, -5, 5, 200, "reproduced"),
        (0, -15, 15, 200, "not resolvable here"),
        (0, 1, 5, 200, "contradicted"),
        (10, -9, 8, 12, "not resolvable here: 12 tasks"),
    ],
)
def test_what_a_difference_is_called(points: float, low: float, high: float, tasks: int, word: str) -> None:
    assert study.called(points, low, high, tasks, any_right=True) == word
    assert study.called(points, low, high, tasks, any_right=False).startswith("not resolvable here: neither")


def plays(agent: str, right: list[bool], values: list[float]) -> study.Played:
    rows = [
        {"task": f"t{n}", "trial": 0, "category": "easy", "level": None, "value": v, "right": r}
        for n, (r, v) in enumerate(zip(right, values))
    ]
    return study.Played("m", "code_debug", agent, rows)


def test_code_is_compared_by_asserts_and_other_suites_by_tasks() -> None:
    first, second = (
        plays("zero_shot", [False] * 40, [0.5] * 40),
        plays("code_executor", [False, True] * 20, [0.7, 1.0] * 20),
    )
    found = {("code_debug", p.agent): p for p in (first, second)}
    asserts = study.verdict(Claim("code_debug", "easy", "zero_shot", "code_executor", 35.0, "value"), found)
    assert asserts["points"] == pytest.approx(35)
    assert asserts["verdict"] == "reproduced"
    tasks = study.verdict(Claim("code_debug", "easy", "zero_shot", "code_executor", 35.0), found)
    assert tasks["points"] == pytest.approx(50)
    nothing = study.verdict(Claim("bfcl", "", "zero_shot", "react", 1.0), found)
    assert nothing["verdict"] == "not resolvable here: not played"


@pytest.mark.slow
def test_the_embedded_model_plays_and_the_second_call_plays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RLHF_SMOLLM2_GGUF", raising=False)
    monkeypatch.delenv("RLHF_TEST_DATA", raising=False)
    record = tmp_path / "record.json"
    words = ["x", "--work", tmp_path / "work", "--record", record, "--suites", "agentbench_mini", "bfcl",
             "--agents", "zero_shot", "react", "--tasks", 1]  # fmt: skip
    made: set[int] = set()
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [str(w) for w in words])
        study.main()
        made.add((tmp_path / "work" / "pocket-tools" / "agentbench_mini-react-1" / "rows.jsonl").stat().st_mtime_ns)
    assert len(made) == 1
    found = json.loads(record.read_text())
    lines = {(one["suite"], one["agent"]): one for one in found["lines"]}
    assert lines["agentbench_mini", "react"]["tasks"] == 3
    assert lines["bfcl", "react"]["refused"] == "its files are not there"
    assert len(found["claims"]["pocket-tools"]) == len(CLAIMS)
    assert "| pocket-tools | agentbench_mini | react | 3 |" in capsys.readouterr().out

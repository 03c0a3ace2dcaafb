"""The turn reward model's data: dialogues stay on one side, turns are written out, intervals are over dialogues."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

from scripts.real import taskmaster_turns as study
from scripts.real._auc import auc, auc_interval


def test_no_dialogue_is_on_both_sides(test_data: Path) -> None:
    rows = study.read_turns(test_data / "taskmaster" / "tm-4_reward.jsonl.gz")
    assert len(rows) > 3200
    assert sum(not r["labels"][0] for r in rows) > 400
    learned, held_out = study.split(rows, 0)
    assert not {study.dialogue(r) for r in learned} & {study.dialogue(r) for r in held_out}
    first = {r["prompt"][0]["content"] + r["prompt"][-1]["content"] for r in held_out}
    assert len(first) > 100
    assert [r["id"] for r in study.split(rows, 0)[1]] == [r["id"] for r in held_out]
    assert [r["id"] for r in study.split(rows, 1)[1]] != [r["id"] for r in held_out]


def test_calls_and_results_are_written_out_and_sides_alternate() -> None:
    turns = [
        {"role": "agent", "text": "Hello."},
        {"role": "user", "text": "A latte,\nplease."},
        {"role": "agent", "api": {"find": {"query": "latte"}}},
        {"role": "api", "response": {"find": {"id": 1}}},
    ]
    said = study.conversation(turns)
    assert [m["role"] for m in said] == ["user", "assistant", "user", "assistant", "user"]
    assert said[3]["content"] == 'CALL {"find": {"query": "latte"}}'
    assert said[4]["content"] == 'RESULT {"find": {"id": 1}}'
    assert said[2]["content"] == "A latte, please."


def test_fewer_rows_keep_the_wrong_ones() -> None:
    rows = [{"id": f"a:{n}", "labels": [n % 5 != 0]} for n in range(50)]
    assert sum(not r["labels"][0] for r in study.fewer(rows, 20, 0)) == 10


def test_the_interval_is_over_groups() -> None:
    assert auc([2, 1], [0, 1]) == 0.875
    rng = random.Random(0)
    labels = [bool(n % 2) for n in range(200)]
    scores = [label + rng.gauss(0, 1) for label in labels]
    alone = auc_interval(scores, labels, [str(n) for n in range(200)], draws=400)
    assert alone["low"] < alone["auc"] < alone["high"]
    assert 0.6 < alone["auc"] < 0.9
    copied = auc_interval(scores * 4, labels * 4, [str(n % 200) for n in range(800)], draws=400)
    assert copied["auc"] == pytest.approx(alone["auc"])
    assert copied["high"] - copied["low"] == pytest.approx(alone["high"] - alone["low"], rel=0.15)


@pytest.mark.slow
def test_the_script_trains_measures_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two epochs over a few invented rows; the second call trains nothing."""
    rng, file = random.Random(0), tmp_path / "turns.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        for n in range(60):
            right = n % 3 != 0
            said = [{"role": "user", "text": f"Order number {rng.randint(0, 20)}"}]
            turn = {"role": "agent", "text": "Sure." if right else "No."}
            lines.write(json.dumps({"conversation_id": str(n), "context": json.dumps(said),
                                    "generation": json.dumps(turn), "reward": float(right)}) + "\n")  # fmt: skip
    monkeypatch.delenv("RLHF_SMOLLM2_GGUF", raising=False)
    record = tmp_path / "record.json"
    words = ["x", "--runs", tmp_path / "runs", "--data", file, "--seeds", 0, "--epochs", 2, "--record", record]
    made: set[int] = set()
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [str(w) for w in words])
        study.main()
        made.add(next((tmp_path / "runs").glob("pocket-tools-0-*of60/summary.json")).stat().st_mtime_ns)
    assert len(made) == 1
    found = json.loads(record.read_text())["results"]
    assert found["pocket-tools"]["0"]["train_rows"] > 30
    assert 0 <= found["pocket-tools"]["0"]["auc"] <= 1
    assert found["right elsewhere"]["0"]["auc"] > 0.9
    assert "pocket-tools | 0" in capsys.readouterr().out

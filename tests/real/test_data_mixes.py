"""The six mixes: as many rows of each kind as said, pairs that are what they are called, and what claims are called."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_pocket import load_pairs
from scripts.real import data_mixes as study


def test_every_mix_has_the_same_number_of_rows() -> None:
    assert set(study.MIXES) == set(study.PUBLISHED)
    for mix in study.MIXES.values():
        assert sum(mix) == 100
        for rows in (7, 100, 999, 1000, 1001):
            parts = study.counts(mix, rows)
            assert sum(parts) == rows
            assert min(parts) >= 0
            assert all(part == 0 for part, share in zip(parts, mix) if share == 0)
            assert all(part > 0 for part, share in zip(parts, mix) if share and rows >= 100)


def test_pairs_are_what_they_are_called() -> None:
    held_out = {r["prompt"] for r in load_pairs("heldout")}
    for kind in (study.conversational, study.synthetic):
        rows = kind(40, 0)
        assert len(rows) == 40
        assert not held_out & {r["prompt"] for r in rows}
        assert rows == kind(40, 0) != kind(40, 1)
    for row in study.agentic(40, 0):
        assert row["chosen"].splitlines()[-1] != row["rejected"].splitlines()[-1]
        assert "search: " in row["chosen"]
    (shown,) = study.demonstrations(1, 0)
    assert shown["messages"][1]["tool_calls"]
    assert shown["tools"]


def test_files_of_a_mix_hold_its_share_of_plays(tmp_path: Path) -> None:
    pairs, shown = study.mixed(tmp_path, "agentic_heavy", 0, 40, None)
    talks = [json.loads(line) for line in shown.read_text().splitlines()]
    assert sum("tools" in row for row in talks) == 20
    judged = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert sum("The answer is" in row["chosen"].splitlines()[-1] for row in judged) == 20
    assert (len(talks), len(judged)) == (40, 40)
    assert study.mixed(tmp_path, "agentic_heavy", 0, 20, None)[0] != pairs, "other rows, another run"
    assert len(study.drawn(talks[:3], 8, 0)) == 8


def results(**mixes: tuple[float, float]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Three seeds of mixes with an AUC and an accuracy (of ten tasks) that is a little higher in every seed."""
    return {
        name: {
            str(s): {
                "auc": {"auc": area + s / 1000},
                "plays": [{"task": str(n), "value": float(n < 10 * share), "right": n < 10 * share} for n in range(10)],
            }
            for s in range(3)
        }
        for name, (area, share) in mixes.items()
    }


def test_claims_need_every_seed() -> None:
    found = study.claims(results(pure_conv=(0.6, 0.2), pure_agentic=(0.5, 0.8), equal_3way=(0.7, 0.8)))
    assert found["an equal mix has a higher reward AUC than conversation alone"] == "reproduced"
    assert found["agentic SFT is better than conversational SFT"] == "reproduced"
    assert found["agentic data alone has the lowest reward AUC"] == "not run"
    other = study.claims(results(pure_conv=(0.8, 0.5), pure_agentic=(0.5, 0.2), equal_3way=(0.7, 0.5)))
    assert other["an equal mix has a higher reward AUC than conversation alone"] == "contradicted"
    assert other["agentic SFT is better than conversational SFT"] == "contradicted"
    same = study.claims(results(pure_conv=(0.7, 0.5), pure_agentic=(0.5, 0.5)))
    assert same["agentic SFT is better than conversational SFT"] == "not resolvable here"


@pytest.mark.slow
@pytest.mark.long
def test_a_mix_is_trained_measured_and_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, runs = tmp_path / "record.json", tmp_path / "runs"
    words = ["x", "--runs", runs, "--record", record, "--mixes", "conv_agentic", "--seeds", 0,
             "--rows", 16, "--epochs", 1, "--tasks", 5, "--pairs", 20]  # fmt: skip
    made: set[int] = set()
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", [str(w) for w in words])
        study.main()
        made.add((runs / "conv_agentic-0-16-agent" / "summary.json").stat().st_mtime_ns)
    assert len(made) == 1
    found = json.loads(record.read_text())
    assert set(found["mixes"]) == {"conv_agentic"}
    one = found["runs"]["conv_agentic"]["0"]
    assert (one["counts"], one["auc"]["groups"] <= 20) == ([8, 0, 8], True)
    assert 0 <= found["mixes"]["conv_agentic"]["accuracy"]["mean"] <= 1
    assert set(found["claims"].values()) == {"not run"}
    assert "| conv_agentic |" in capsys.readouterr().out

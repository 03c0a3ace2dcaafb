"""Judges that choose among completions: scores, failures, interruptions, changed weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import ComponentConfig, RlhfError
from rlhf_core.rewards import JudgeReply, JudgeRequest, ScoreStatus
from rlhf_eval.report import report
from rlhf_eval.selectors import Selector, score
from rlhf_eval.store import ResultFolder

from .conftest import result_row


class MarkerConfig(ComponentConfig):
    """A judge that likes digits."""

    name: str = "marker"

    def build(self, ctx: Any) -> Any:
        return self

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        return [
            JudgeReply(
                "Mark: 9" if "7" in r.messages[-1]["content"].split("<response-")[1].split("\n")[1] else "no idea"
            )
            for r in requests
        ]


def test_a_judge_chooses_and_a_reply_without_a_mark_is_missing(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "e", {})
    folder.open(1)
    rows = [result_row(0, 1.0, sample=0, completion="7"), result_row(0, 0.0, sample=1, completion="8")]
    chosen = Selector("marker", "judge", MarkerConfig())
    scores = score(chosen, folder, rows, context_of(open_registry()))
    assert scores == {("p0", 0): 9.0, ("p0", 1): None}
    assert report(rows, {"marker": scores})["best_at"]["marker"]["2"]["value"] == 1.0
    lines = (tmp_path / "e" / "scores" / "marker.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["status"] == "missing"


class FlakyConfig(MarkerConfig):
    """Fails the first time."""

    name: str = "flaky"
    calls: ClassVar[list[int]] = []

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        self.calls.append(len(requests))
        if len(self.calls) < 3:
            return [JudgeReply.failed(ScoreStatus.TIMEOUT, "too late") for _ in requests]
        return [JudgeReply("5") for _ in requests]


def test_a_selector_that_failed_is_asked_again_and_never_taken_for_a_tie(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "e", {})
    folder.open(1)
    rows = [result_row(0, 1.0, sample=0), result_row(0, 0.0, sample=1)]
    for _ in range(2):
        with pytest.raises(RlhfError, match="scored none of 2"):
            score(Selector("flaky", "judge", FlakyConfig()), folder, rows, context_of(open_registry()))
    scores = score(Selector("flaky", "judge", FlakyConfig()), folder, rows, context_of(open_registry()))
    assert scores == {("p0", 0): 5.0, ("p0", 1): 5.0}
    score(Selector("flaky", "judge", FlakyConfig()), folder, rows, context_of(open_registry()))
    assert FlakyConfig.calls == [2, 2, 2], "what is scored is kept"


class HaltingConfig(MarkerConfig):
    """Is interrupted at its third call, and counts what it was asked."""

    name: str = "halting"
    calls: ClassVar[list[int]] = []

    def ask(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        self.calls.append(len(requests))
        if len(self.calls) == 3:
            raise KeyboardInterrupt
        return [JudgeReply("5") for _ in requests]


def test_an_interruption_loses_one_part_of_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_eval.selectors.PART", 2)
    folder, messages = ResultFolder(tmp_path / "e", {}), list[str]()
    folder.open(1)
    rows = [result_row(n, 1.0) for n in range(7)]
    halting = Selector("halting", "judge", HaltingConfig())
    with pytest.raises(KeyboardInterrupt):
        score(halting, folder, rows, context_of(open_registry()), messages.append)
    assert messages == ["halting: 2 of 7 completions scored", "halting: 4 of 7 completions scored"]
    scores = score(halting, folder, rows, context_of(open_registry()))
    assert HaltingConfig.calls == [2, 2, 2, 2, 1]
    assert list(scores) == [(f"p{n}", 0) for n in range(7)]
    assert set(scores.values()) == {5.0}


class OnDiskConfig(FlakyConfig):
    """Its model lies in a folder, further down in its settings."""

    name: str = "on_disk"
    model: dict[str, str]
    calls: ClassVar[list[int]] = [0, 0]


def test_other_weights_of_a_judge_are_another_judge(tmp_path: Path) -> None:
    folder, weights = ResultFolder(tmp_path / "e", {}), tmp_path / "judge" / "weights"
    folder.open(1)
    weights.parent.mkdir()
    judge = Selector("on_disk", "judge", OnDiskConfig(model={"path": str(weights.parent)}))
    for text in ("first", "first", "other"):
        weights.write_text(text)
        score(judge, folder, [result_row(0, 1.0)], context_of(open_registry()))
    assert OnDiskConfig.calls == [0, 0, 1, 1]

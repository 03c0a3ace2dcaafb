"""Figures, comparisons and warnings from the rows of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.cli import open_registry
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_eval.compare import compare
from rlhf_eval.grading import category, final_answer, modes_of
from rlhf_eval.report import report, warnings
from rlhf_eval.store import Stored

from .conftest import result_row


def test_categories_modes_and_stated_answers() -> None:
    parts = [Score(float(right), {"format": form}) for form in (1.0, 0.0) for right in (True, False)]
    assert [category(s) for s in parts] == ["format and answer", "format only", "answer only", "neither"]
    assert category(Score.failed(ScoreStatus.TIMEOUT, "late")) == "not judged"
    assert category(Score(1.0)) == "right"
    registry = open_registry()
    assert modes_of(registry.load("verifier", "gsm8k").model_validate({"name": "gsm8k"})) == {  # pyright: ignore[reportArgumentType]
        "strict": "strict",
        "lenient": "lenient",
    }
    assert [final_answer(d) for d in ("stated '1/2'", "stated 18", "no answer found")] == ["1/2", "18", None]


def test_a_missing_verdict_counts_neither_way_and_is_told() -> None:
    result = report([result_row(0, 1.0), result_row(1, 0.0), result_row(2, None)])
    assert result["pass_at"]["1"]["value"] == 0.5
    assert result["statuses"] == {"ok": 2, "timeout": 1}
    assert any("no verdict on 1" in w for w in warnings(result))
    with pytest.raises(Exception, match="none of 2 completions could be judged"):
        report([result_row(0, None), result_row(1, None)])


def test_a_mode_without_a_verdict_counts_neither_way_there_and_is_told() -> None:
    result = report([result_row(0, 1.0), result_row(1, 1.0, strict=None), result_row(2, 0.0, lenient=1.0)])
    assert (result["modes"]["strict"]["value"], result["modes"]["strict"]["missing"]) == (0.5, 1)
    assert (result["modes"]["lenient"]["value"], result["modes"]["lenient"]["missing"]) == (1.0, 0)
    assert [w for w in warnings(result) if "verdict" in w] == [
        "no strict verdict on 1 of the judged completions; they count neither way there"
    ]
    assert "modes" not in report([result_row(0, 1.0, strict=None)])


def test_first_completions_are_compared_where_both_were_judged() -> None:
    a = [result_row(0, 1.0), result_row(1, None), result_row(1, 1.0, sample=1)]
    b = [result_row(0, 0.0), result_row(1, 0.0), result_row(1, 0.0, sample=1)]
    comparison = compare(Stored(Path("a"), {}, a), Stored(Path("b"), {}, b))
    assert comparison["prompts"] == 2
    assert {k: comparison["mcnemar"][k] for k in ("prompts", "lost", "gained", "examples_lost")} == {
        "prompts": 1,
        "lost": 1,
        "gained": 0,
        "examples_lost": ["p0"],
    }


def test_truncation_runaway_questions_and_lost_format_are_warned_about() -> None:
    rows = [result_row(i, 0.0, finish_reason="length", completion="7. Question: 8?", lenient=1.0) for i in range(4)]
    text = " ".join(warnings(report(rows)))
    assert "100.0% of the completions were cut" in text
    assert "ask themselves another question" in text
    assert "strict 0.0%, lenient 100.0%" in text

"""ProcessBench's F1 by hand, and its thresholds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlhf_plugin_prm.evaluate import evaluate
from rlhf_plugin_prm.first_error import best, by_chance, crossed, measure, report

RIGHT = [np.array(r) for r in ([0.9, 0.2, 0.8], [0.9, 0.9], [0.4, 0.1], [0.8, 0.6])]
LABELS = [1, -1, 1, -1]


def test_f1_by_hand() -> None:
    """At 0.5 the first is found, the third is called too early; both right ones pass: 2 * 0.5 * 1 / 1.5."""
    result = measure(RIGHT, LABELS, 0.5)
    assert (result.errors_found, result.passed) == (0.5, 1.0)
    assert result.f1 == pytest.approx(2 / 3)
    assert measure(RIGHT, LABELS, 0.0).f1 == 0
    top = best(RIGHT, LABELS)
    assert (top.f1, top.errors_found) == (1.0, 1.0)
    assert 0.2 < top.threshold <= 0.4
    with pytest.raises(ValueError, match="with an error and solutions without"):
        measure(RIGHT[1:2], [-1], 0.5)


def test_chance_is_far_below_a_model_that_knows() -> None:
    rng = np.random.default_rng(1)
    labels = [int(rng.integers(4)) if n % 2 else -1 for n in range(200)]
    knows = [np.where(np.arange(4) == label, 0.1, 0.9) + rng.normal(0, 0.05, 4) for label in labels]
    guesses = [rng.random(4) for _ in labels]
    fair = crossed(knows, labels)
    assert fair is not None
    assert fair.f1 > 0.95
    assert report(knows, labels)["best"]["f1"] > 0.95
    low, level = by_chance(knows, labels), by_chance(guesses, labels)
    assert low is not None
    assert level is not None
    assert low < 0.6
    assert abs(level - best(guesses, labels).f1) < 0.1


def test_by_chance_nobody_keeps_its_own_scores() -> None:
    """Two of each length, which can only change places: then both are wrong at any threshold."""
    right = [np.array([first, *[0.9] * steps]) for steps in range(1, 6) for first in (0.1, 0.9)]
    labels = [0, -1] * 5
    assert best(right, labels).f1 == 1
    assert by_chance(right, labels) == 0
    alone = [*right, np.array([0.1] * 9)]
    assert by_chance(alone, [*labels, 0]) == 0, "without another of its length it is left out"
    assert report(right[1:3], [-1, 0])["chance"] is None


def test_solutions_without_a_score_are_counted_and_too_many_refused(
    command: Callable[..., tuple[int, str]], prm: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "2 + 3?", "steps": ["2 + 3 = 5", "It is 5."], "label": n % 3 - 1} for n in range(11)]
    long = {"prompt": "2 + 3?", "steps": ["2 + 3 = 5 " * 20], "label": 0}
    file.write_text("".join(json.dumps(r) + "\n" for r in [*rows, long]))
    assert evaluate(str(prm), str(file), max_length=60)["unscored"] == 1
    file.write_text("".join(json.dumps(r) + "\n" for r in [*rows[:5], long]))
    code, err = command("reward", "first-error", "--model", prm, "--input", file, "--max-length", 60)
    assert code == 2
    assert "1 of 6 solutions" in err
    assert "--max-length" in err
    file.write_text("".join(json.dumps({**r, "label": -1}) + "\n" for r in rows) + json.dumps(long) + "\n")
    code, err = command("reward", "first-error", "--model", prm, "--input", file, "--max-length", 60)
    assert code == 2, "nothing with an error is left"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows[1:]))
    code, err = command("reward", "first-error", "--model", prm, "--input", file, "--limit", 2)
    assert code == 2
    assert "the first 2 solutions" in err, "the file's others are right"
    assert "larger --limit" in err


def test_the_command_reads_both_forms(command: Callable[..., tuple[int, str]], prm: Path, tmp_path: Path) -> None:
    our_rows, published_rows = tmp_path / "ours.jsonl", tmp_path / "theirs.json"
    rows = [{"prompt": "2 + 3?", "steps": ["2 + 3 = 5", "It is 5."], "label": n % 3 - 1} for n in range(6)]
    our_rows.write_text("".join(json.dumps(r) + "\n" for r in rows))
    published_rows.write_text(
        json.dumps(
            [
                {
                    "id": n,
                    "problem": r["prompt"],
                    "steps": r["steps"],
                    "label": r["label"],
                    "final_answer_correct": True,
                }
                for n, r in enumerate(rows)
            ]
        )
    )
    for file in (our_rows, published_rows):
        code, err = command("reward", "first-error", "--model", prm, "--input", file)
        assert code == 0, err
    code, err = command("reward", "first-error", "--model", prm, "--input", our_rows, "--limit", 3)
    assert code == 0, err
    our_rows.write_text("".join(json.dumps({**r, "label": -1}) + "\n" for r in rows))
    code, err = command("reward", "first-error", "--model", prm, "--input", our_rows)
    assert code == 2
    assert "have no error" in err

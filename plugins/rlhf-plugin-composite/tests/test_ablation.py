"""Weight ablation over scored responses: figures worked out by hand, the command, and inputs it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_plugin_composite.ablation import grid, read_scored, weigh
from rlhf_plugin_composite.config import HollowCheck
from rlhf_plugin_composite.rules import hollow_pattern

ROWS: list[dict[str, Any]] = [
    {"prompt": "p", "completion": "Absolutely! a b c d e f", "scores": {"taste": 0.9, "rules": 0.0}, "gold": 0.2},
    {"prompt": "p", "completion": "a cat", "scores": {"taste": 0.6, "rules": 1.0}, "gold": 1.0},
    {"prompt": "q", "completion": "a dog", "scores": {"taste": 0.8, "rules": 1.0}, "gold": 0.9},
    {"prompt": "q", "completion": "Absolutely! b", "scores": {"taste": 0.7, "rules": 0.0}, "gold": 0.1},
    {"prompt": "q", "completion": "none", "scores": {"taste": 0.7}, "gold": 0.5},
]


def test_weights_change_the_best_response_and_the_rank_correlation() -> None:
    scored = read_scored(ROWS, [], "gold", "x")
    assert (scored.names, scored.left_out) == (["taste", "rules"], 1)
    taste, mixed = weigh(scored, [{"taste": 1.0}, {"taste": 0.7, "rules": 0.3}], hollow_pattern(HollowCheck()))
    assert (taste.changed, taste.agreement, taste.chosen_label) == (0.0, 0.5, pytest.approx(0.55))
    assert taste.spearman == pytest.approx(-0.4)  # ranks 3 0 2 1 against 1 3 2 0
    assert (taste.chosen_hollow, taste.chosen_words) == (0.5, 4.5)
    assert (mixed.changed, mixed.agreement, mixed.chosen_label) == (0.5, 1.0, pytest.approx(0.95))
    assert (mixed.chosen_hollow, mixed.chosen_words) == (0.0, 2.0)
    assert mixed.parts == {"taste": pytest.approx(0.7), "rules": 1.0}


def test_the_grid_sums_to_one_and_begins_with_single_components() -> None:
    rows = grid(["a", "b", "c"], 4)
    assert rows[:3] == [{"a": 1, "b": 0, "c": 0}, {"a": 0, "b": 1, "c": 0}, {"a": 0, "b": 0, "c": 1}]
    assert len(rows) == 15
    assert all(sum(r.values()) == 1 for r in rows)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.mark.slow
def test_from_scoring_to_ablation_on_the_command_line(tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    source = write(tmp_path / "a.jsonl", [{k: v for k, v in r.items() if k != "scores"} for r in ROWS])
    scored, out = tmp_path / "scored.jsonl", tmp_path / "ablation.json"
    code, err = command(
        "reward",
        "score",
        "--reward",
        "composite",
        "--input",
        source,
        "--output",
        scored,
        "--set",
        "parts={short: {reward: {name: programmatic, mode: continuous, hollow: null, length: {max: 2}}"
        "}, plain: {reward: {name: programmatic, length: null}}}",
    )
    assert code == 0, err
    code, err = command("reward", "ablate", "--input", scored, "--label", "gold", "--output", out)
    assert code == 0, err
    result = json.loads(out.read_text())
    assert result["components"] == ["short", "plain"]
    assert [len(result["weightings"]), result["prompts"], result["responses"]] == [5, 2, 5]
    plain = next(w for w in result["weightings"] if w["weights"]["plain"] == 1)
    assert plain["agreement"] == pytest.approx(0.875)  # of 4 pairs one is a tie: 'a dog' and 'none' are both plain


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"gold": 1.0}, ("--label", "gold"), "same in all 4 rows"),
        ({"gold": "good"}, ("--label", "gold"), "no number in column 'gold'"),
        ({}, ("--label", "glod"), "no number in column 'glod'"),
        ({}, ("--parts", "tast"), "no component 'tast'"),
        ({}, ("--weights", "tatse=1"), "names 'tatse'"),
        ({}, ("--weights", "taste"), "not of the form"),
        ({}, ("--weights", "taste=0"), "weighs nothing"),
        ({}, ("--normalise", "taste=square"), "cannot be done"),
        ({}, ("--steps", "5000"), "5001 weightings"),
        ({"scores": None}, (), "no scored components"),
        ({"scores": {"taste": 1.0}}, ("--normalise", "taste=zscore"), "same in all responses"),
    ],
)
def test_what_cannot_be_ablated_is_refused(
    change: dict[str, Any],
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    command: Callable[..., tuple[int, str]],
) -> None:
    file = write(tmp_path / "a.jsonl", [{**r, **change} for r in ROWS])
    code, err = command("reward", "ablate", "--input", file, *options)
    assert code == 2
    assert words in err

"""RewardBench 2: rows as published, the score of each subset, and the formula of Ties."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.data import Prompt
from rlhf_plugin_reward_eval.cases import Case, read_best_of
from rlhf_plugin_reward_eval.reward_bench_2 import reward_bench_2


def row(name: str, subset: str, chosen: list[str], rejected: list[str], **more: Any) -> dict[str, Any]:
    """With the columns of the published file."""
    counts = {"num_correct": len(chosen), "num_incorrect": len(rejected)}
    return {
        "id": name,
        "prompt": "What is 2 + 2?",
        "chosen": chosen,
        "rejected": rejected,
        **counts,
        "total_completions": len(chosen) + len(rejected),
        "models": ["human"] * (len(chosen) + len(rejected)),
        "subset": subset,
        "additional_metadata": {"category": None, "index": 1.0, "instruction_id_list": None},
        **more,
    }


def measured(*rows: dict[str, Any]) -> dict[str, Any]:
    """Responses are their own scores; ``-`` has none."""
    cases: list[Case] = []
    for number, one in enumerate(rows):
        messages = ({"role": "user", "content": one["prompt"]},)
        cases += read_best_of(f"rb2/{one['id']}", messages, Prompt("", ()), one, f"line {number}")
    scores = [
        np.array([math.nan if t.completion == "-" else float(t.completion) for t in texts])
        for texts in ([c.chosen for c in cases], [c.rejected for c in cases])
    ]
    return reward_bench_2(cases, *scores)


def test_the_best_of_four_shares_its_point_and_a_missing_score_leaves_the_row_out() -> None:
    result = measured(
        row("0", "Math", ["4"], ["1", "2", "3"]),
        row("1", "Math", ["4"], ["4", "2", "3"]),
        row("2", "Math", ["4"], ["4", "4", "4"]),
        row("3", "Math", ["4"], ["5", "1", "1"]),
        row("0", "Focus", ["4"], ["1", "2", "3"]),
        row("5", "Focus", ["4"], ["1", "-", "3"]),
        row("6", "Safety", ["-"], ["1", "2", "3"]),
    )
    assert result["subsets"] == {"Math": (1 + 0.5 + 0.25 + 0) / 4, "Focus": 1.0}
    assert (result["rows"], result["missing"], result["average"]) == (5, 2, (1.75 / 4 + 1) / 2)


def test_ties_are_scored_by_the_published_formula() -> None:
    result = measured(
        # margins 4 (one answer) and 2 (several), which are 1 apart: preferred, and hard
        row("ref:1", "Ties", ["9"], ["5", "0"]),
        row("tied:1", "Ties", ["8", "7"], ["5", "0"]),
        # 3 > 1 in the tied row, but 0.5 in the other: preferred, not hard
        row("ref:2", "Ties", ["5.5"], ["5"]),
        row("tied:2", "Ties", ["9", "8"], ["5"]),
        # the right ones do not differ, and are below a wrong one: -inf
        row("ref:3", "Ties", ["4"], ["5"]),
        row("tied:3", "Ties", ["4", "4", "4"], ["5"]),
        # nothing differs: 0 / 0 counts 0
        row("ref:4", "Ties", ["1"], ["1"]),
        row("tied:4", "Ties", ["1", "1"], ["1"]),
        # without its other row: accuracy alone
        row("ref:5", "Ties", ["2"], ["1"]),
    )
    margin = (math.tanh(2 / 1 - 1) + math.tanh(0.5 / 1 - 1) - 1 + 0) / 4
    assert result["ties"] == pytest.approx(
        {"ref": 3 / 5, "tied": 2 / 4, "preferred": 2 / 4, "preferred_hard": 1 / 4, "margin": margin}
    )
    whole = 0.3 * 3 / 5 + 0.3 / 2 + 0.2 / 2 + 0.2 / 4 + 0.01 * margin
    assert result["subsets"]["Ties"] == pytest.approx(whole)


def test_the_command_reads_the_published_form(rlhf: Any, tmp_path: Path) -> None:
    rows = [
        row("0", "Math", ["It is 4."], ["It is 5.", "It is 6.", "It is 44."], answer="4"),
        row("1", "Math", ["It is four."], ["It is 5.", "It is 4.", "It is 7."], answer="4"),
        row("ref:1", "Ties", ["It is 4."], ["It is 5.", "It is 6."], answer="4"),
        row("tied:1", "Ties", ["It is 4.", "4"], ["It is 5.", "It is 6."], answer="4"),
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    task = ("reward", "evaluate", "--reward", "verifier", "--set", "verifier.name=numeric", "--pairs", path)
    ran = rlhf(*task, "--probe", "none", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)["rewards"]["verifier"]
    assert result["reward_bench_2"]["subsets"] == pytest.approx({"Math": 0.5, "Ties": 1.01})
    assert result["pairs"] == 3 + 3 + 2 + 4
    shown = rlhf(*task, "--probe", "none").out
    assert "RewardBench 2" in shown
    assert "4 rows, 0 left out; Ties: ref 1.000, tied 1.000, preferred 1.000" in shown
    few = json.loads(rlhf(*task, "--probe", "none", "--json", "--limit", 4).out)["rewards"]["verifier"]
    assert few["pairs"] == 3 + 3  # the fourth is of the second row, which is whole or not there
    assert few["reward_bench_2"]["subsets"] == pytest.approx({"Math": 0.5})
    for change, why in (
        ({"num_correct": 2}, "does not hold the responses that it counts"),
        ({"id": "7", "subset": "Ties"}, "neither ref:N"),
        ({"id": "tied:7", "subset": "Ties"}, "neither ref:N"),
    ):
        path.write_text(json.dumps({**rows[0], **change}) + "\n")
        refused = rlhf(*task)
        assert refused.code == 2
        assert why in refused.err

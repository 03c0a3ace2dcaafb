"""`rlhf data pairs`: a model's best and worst answer to each prompt."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.data import Prompt
from rlhf_plugin_datagen.ranking import ranked


def test_the_best_and_the_worst_by_the_gold_score_make_a_pair(rlhf: Any) -> None:
    words = ("data", "pairs", "--gold", "--count", 6, "--skip", 2, "--n", 3, "--max-tokens", 24, "--json")
    ran = rlhf(*words, "--output", "a.jsonl")
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    result = json.loads(ran.out)
    assert result["prompts"] == 6
    assert result["pairs"] == len(rows) == 6 - sum(result["left_out"].values())
    assert all(row["score_chosen"] > row["score_rejected"] for row in rows)
    assert all(row["chosen"] != row["rejected"] for row in rows)
    assert rlhf(*words, "--output", "b.jsonl").code == 0
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text(), "the same seed, the same pairs"


def test_no_pair_at_all_is_a_failure_with_its_reason(rlhf: Any) -> None:
    """Answers of one token, of which none is right: all score the same."""
    words = ("--dataset", "pocket/arithmetic", "--reward", "verifier", "--count", 4, "--max-tokens", 1)
    ran = rlhf("data", "pairs", *words, "--output", "a.jsonl")
    assert ran.code == 1
    assert "no pair was made of 4 prompts" in ran.err
    assert "4 equal scores" in ran.err
    assert not Path("a.jsonl").exists()


def test_missing_and_equal_scores_give_no_pair() -> None:
    prompts = [Prompt(str(n), ({"role": "user", "content": "?"},)) for n in range(3)]
    rollouts: Any = [SimpleNamespace(text=text) for text in "abcdefghi"]
    values = [0.5, None, 1.0, 0.3, 0.3, 0.3, None, None, 2.0]
    rows, left_out = ranked(prompts, rollouts, values, 3)
    assert [(row["id"], row["chosen"], row["rejected"]) for row in rows] == [("0", "c", "a")]
    assert left_out == Counter(equal_scores=1, fewer_than_two_scores=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "say by what answers are ranked"),
        (("--gold", "--reward", "verifier"), "say by what answers are ranked"),
        (("--gold", "--dataset", "pocket/arithmetic"), "has no gold score"),
        (("--gold", "--skip", "99999"), "leaves none"),
        (("--reward", "verifer"), "did you mean 'verifier'"),
    ],
)
def test_what_cannot_be_ranked_is_refused(rlhf: Any, options: tuple[str, ...], said: str) -> None:
    ran = rlhf("data", "pairs", "--output", "a.jsonl", *options)
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert not Path("a.jsonl").exists()

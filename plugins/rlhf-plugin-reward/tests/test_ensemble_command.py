"""`rlhf reward ensemble`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = ("--set", "members=2", "--set", "max_pairs=8", "--set", "heldout_pairs=4", "--set", "sharing=frozen")


def test_the_folder_scores_as_an_ensemble(rlhf: Any) -> None:
    ran = rlhf("reward", "ensemble", *SMALL, "--output", "e", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["train_pairs"] == 8
    assert json.loads(Path("e/ensemble.json").read_text())["sharing"] == "frozen"
    Path("a.jsonl").write_text('{"prompt": "What pet does Ada have?", "completion": "A cat."}\n')
    scored = json.loads(rlhf("reward", "score", "--model", "e", "--input", "a.jsonl", "--json").out)
    assert scored["reward"] == "ensemble"
    assert scored["scored"] == 1
    again = rlhf("reward", "ensemble", *SMALL, "--output", "e")
    assert again.code == 2
    assert "holds an ensemble" in again.err


def test_a_model_that_is_not_there_is_refused_before_training(rlhf: Any) -> None:
    ran = rlhf("reward", "ensemble", "--model", "./gone", "--output", "e")
    assert ran.code == 2
    assert "there is no model folder './gone'" in ran.err

"""Held-out samples of a policy that learns from data."""

from __future__ import annotations

import json

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.training.policy_evaluator import Evaluation, before_and_after
from rlhf_core.types.rollouts import Media, Prompt, PromptGroup

from .conftest import OFFLINE, Train


def test_a_mixture_in_which_only_one_source_has_a_gold_score(train: Train) -> None:
    file = train.folder / "own.jsonl"
    rows = [{"prompt": f"Say {n}.", "completion": f"It is {n}."} for n in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [{"source": {"name": "pocket"}}, {"source": {"name": "jsonl", "path": str(file)}}]
    summary = train(OFFLINE, change={"trainer": {"max_steps": 1, "sample_prompts": 4}, "dataset": {"sources": sources}})
    assert summary["status"] == "completed"
    found = [r for r in read_jsonl(train.folder / "run" / "metrics.jsonl") if "eval/kl" in r]
    assert len(found) == 2
    assert "gold_win_rate" not in summary


def test_sounds_of_an_evaluation_outlive_a_checkpoint_and_are_what_the_summary_shows() -> None:
    sounds = [Evaluation({}, [codes], None, media=[(Media("audio", path=path),)]) for codes, path in ("ab", "cd")]
    before, after = (Evaluation.from_state(json.loads(json.dumps(one.state()))) for one in sounds)
    assert before == sounds[0]
    group = PromptGroup(Prompt("p", ({"role": "user", "content": "Hi."},)), (1, 2), 1)
    shown = before_and_after([group], before, after)
    assert [(row["before"], row["after"]) for row in shown["examples"]] == [("b", "d")]
    assert "media" not in Evaluation({}, ["text"], None).state()

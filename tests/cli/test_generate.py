"""`rlhf generate` samples what a run would sample, and refuses what cannot work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rlhf = Callable[..., Any]


def test_the_seed_decides_the_text(rlhf: Rlhf) -> None:
    args = ("generate", "--prompt", "What is 2 + 3?", "--n", 4, "--json")
    rows = json.loads(rlhf(*args).out)
    assert [len(r["completions"]) for r in rows] == [4]
    assert len({c["seed"] for c in rows[0]["completions"]}) == 4
    assert json.loads(rlhf(*args).out) == rows
    other = json.loads(rlhf(*args, "--seed", 1).out)
    assert [c["seed"] for c in other[0]["completions"]] != [c["seed"] for c in rows[0]["completions"]]


def test_options_reach_the_engine(rlhf: Rlhf, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(
        '{"id": "a", "prompt": "What is 2 + 3?"}\n{"messages": [{"role": "user", "content": "What is 9 - 4?"}]}\n'
    )
    out = rlhf("generate", "--input", file, "--temperature", 0, "--max-tokens", 3, "--n", 2, "--json")
    rows = json.loads(out.out)
    assert [r["id"] for r in rows] == ["a", "in/1"]
    assert rows[0]["completions"][0]["text"] == rows[0]["completions"][1]["text"]
    assert {c["finish_reason"] for r in rows for c in r["completions"]} == {"length"}
    assert {c["tokens"] for r in rows for c in r["completions"]} == {3}
    out = rlhf("generate", "--prompt", "What is 2 + 3?", "--temperature", 0, "--stop", "answer", "--json")
    stopped = json.loads(out.out)
    assert stopped[0]["completions"][0]["finish_reason"] == "stop"
    assert stopped[0]["completions"][0]["text"].endswith("answer")


def test_prints_prompt_and_completions(rlhf: Rlhf) -> None:
    out = rlhf("generate", "--prompt", "What is 2 + 3?", "--temperature", 0, "--max-tokens", 2)
    assert out.code == 0
    assert out.out.startswith("What is 2 + 3?\n  ")
    assert "[cut at --max-tokens]" in out.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "there is no prompt"),
        (("--prompt", " "), "--prompt is empty"),
        (("--input", "missing.jsonl"), "'missing.jsonl' does not exist"),
        (("--prompt", "x", "--model", "./no-model"), "no model folder './no-model'"),
        (("--prompt", "x", "--max-tokens", "9999"), "lower --max-tokens"),
        (("--prompt", "x", "--min-tokens", "9", "--max-tokens", "8"), "--min-tokens 9 is above --max-tokens 8"),
        (("--prompt", "x", "--temperature", "-1"), "--temperature"),
        (("--prompt", "x", "--top-p", "0"), "--top-p"),
        (("--prompt", "x", "--temprature", "1"), "--temperature"),
    ],
)
def test_wrong_input(rlhf: Rlhf, args: tuple[str, ...], message: str) -> None:
    out = rlhf("generate", *args)
    assert out.code == 2
    assert message in out.err
    assert "Traceback" not in out.err


def test_a_reward_model_does_not_speak(rlhf: Rlhf, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = rlhf(
        "train",
        "--algo",
        "reward_model",
        "--run-dir",
        run,
        "--set",
        "trainer.max_steps=1",
        "--set",
        "trainer.batch_size=4",
        "--set",
        "trainer.eval_samples=0",
        "--set",
        "dataset.limit=16",
    )
    assert trained.code == 0, trained.err
    out = rlhf("generate", "--model", run / "final", "--prompt", "What is 2 + 3?")
    assert out.code == 2
    assert "LlamaForSequenceClassification, which cannot generate text" in out.err
    out = rlhf("generate", "--model", run, "--prompt", "What is 2 + 3?")
    assert "LlamaForSequenceClassification, which cannot generate text" in out.err

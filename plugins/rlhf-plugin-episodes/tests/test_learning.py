"""Each algorithm learns from episodes with calls and results, or says by name why it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli.main import main
from tests.resume.runs import read_run

from .test_runs import arguments

CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "do", "arguments": {"what": "add"}}}],
}
RESULT = {"role": "tool", "content": "four it is", "tool_call_id": "c0", "name": "do"}
TOOLS = [{"type": "function", "function": {"name": "do", "description": "", "parameters": {"type": "object"}}}]


def run(words: list[str]) -> int:
    with pytest.raises(SystemExit) as done:
        main(words)
    return int(done.value.code or 0)


def online(model: Path, folder: Path, algo: str, *more: str, **settings: object) -> list[str]:
    """One step of an algorithm in the environment that answers every turn twice."""
    small = {"trainer.steps": 1, "trainer.eval_samples": 0, "trainer.eval_every": 0, **settings}
    words = arguments(model, folder, algo, **small)
    words[words.index("--algo") + 1] = algo
    for name in [w for w in words if w.startswith(tuple(f"{k}=None" for k in settings))]:
        at = words.index(name)
        del words[at - 1 : at + 1]
    return [*words, *more]


PAIRS = {
    "trainer.train_batch_size": None,
    "trainer.kl.coefficient": None,
    "trainer.updates": 2,
    "trainer.pair_batch_size": 2,
}
CRITIC = {"trainer.group_size": 1, "trainer.rollout_batch_size": 4, "trainer.train_batch_size": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "more", "settings", "says"),
    [
        ("grpo", ["--advantage", "turn"], {}, "advantage/turns"),
        ("rloo", [], {}, "importance_ratio"),
        ("ppo", [], CRITIC, "value_loss"),
        ("iterative_dpo", [], PAIRS, "pairs"),
    ],
)
def test_algorithms_that_sample_play_episodes(
    algo: str, more: list[str], settings: dict[str, Any], says: str, naughty: Path, small_model: Path
) -> None:
    assert run(online(small_model, naughty, algo, *more, **settings)) == 0
    left = read_run(naughty / algo)
    row = {key: value for line in left.metrics for key, value in line.items()}
    assert row[says] > 0
    assert row["turns/mean"] > 1
    assert row["environment_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["kto", "reward_model", "dpo"])
def test_algorithms_on_data_learn_conversations_with_calls(algo: str, naughty: Path, small_model: Path) -> None:
    asked = [[{"role": "user", "content": f"{n} + 2?"}, CALLING, RESULT] for n in range(16)]
    pairs = [{"id": f"q{n}", "prompt": p, "tools": TOOLS} for n, p in enumerate(asked)]
    answers = ({"chosen": "It is 4.", "rejected": "No."}, {"chosen": [CALLING], "rejected": "No."})
    rows = [{**row, **answers[n % 2]} for n, row in enumerate(pairs)]
    if algo == "kto":
        single = ({"completion": "It is 4.", "label": True}, {"completion": [CALLING], "label": False})
        rows = [{**row, **single[n % 2]} for n, row in enumerate(pairs)]
    data = naughty / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--algo", algo, "--model", str(small_model), "--dataset", str(data), "--run-dir"]
    sets = ["trainer.max_steps=2", "trainer.batch_size=4", "threads=1", "trainer.max_length=1000"]
    if algo == "dpo":  # its policy is evaluated in the environment
        words = [*words[:-1], "--env", "effects", words[-1]]
        sets += ["trainer.sample_prompts=2", "trainer.sampling.max_tokens=40", f"environment.file={naughty / 'calls'}"]
    assert run([*words, str(naughty / algo), *(word for s in sets for word in ("--set", s))]) == 0
    summary = read_run(naughty / algo).summary
    assert (naughty / "calls").exists() is (algo == "dpo")
    assert not any(name.startswith(("examples_", "pairs_")) for name in summary.get("dropped", {})), summary["dropped"]


@pytest.mark.parametrize(
    ("algo", "more", "says"),
    [
        ("grpo", ["--advantage", "step"], "advantage 'step' cannot be used in environment 'effects'"),
        ("reward_model", [], "algorithm 'reward_model' does not use environment 'effects'"),
        ("prm", [], "algorithm 'prm' does not use environment 'effects'"),
        ("sft", [], "algorithm 'sft' does not use environment 'effects'"),
    ],
)
def test_what_cannot_learn_from_episodes_is_refused_by_name(
    algo: str, more: list[str], says: str, naughty: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = naughty / "prompts.jsonl"
    columns = {"chosen": "1", "rejected": "2", "completion": "1"}
    rows = [{"id": f"q{n}", "prompt": f"What is {n}?", "label": n % 2 == 0, **columns} for n in range(24)]
    if algo == "prm":
        rows = [{**row, "steps": ["1"], "labels": [row.pop("label")]} for row in rows]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--algo", algo, "--env", "effects", "--model", str(small_model), "--dataset", str(data)]
    assert run([*words, *more, "--dry-run", "--run-dir", str(naughty / "run")]) == 2
    assert says in capsys.readouterr().err

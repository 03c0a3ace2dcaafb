"""Sources are mixed by weight in training and in held-out evaluation, and a changed text is noticed on resume."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.cli.main import main
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.data.order import ExampleOrder, fingerprint, interleave
from rlhf_core.types.rollouts import Media, Prompt

Write = Callable[..., str]
SOURCES = ["a"] * 30 + ["b"] * 10
WEIGHTS = {"a": 1.0, "b": 3.0}


def test_every_beginning_of_the_draws_holds_the_shares() -> None:
    drawn = ExampleOrder(SOURCES, WEIGHTS, 0).draws(0, 400)
    for n in range(1, 401):
        assert abs(sum(i >= 30 for i in drawn[:n]) - 0.75 * n) <= 1
    for rows in ([i for i in drawn if i >= 30], [i for i in drawn if i < 30]):
        size = len(set(rows))
        assert all(len(set(rows[k : k + size])) == size for k in range(0, len(rows) - size, size))


def test_draws_depend_on_the_seed_alone() -> None:
    late = ExampleOrder(SOURCES, WEIGHTS, 0).draws(70, 9)
    assert late == ExampleOrder(SOURCES, WEIGHTS, 0).draws(0, 400)[70:79]
    assert late != ExampleOrder(SOURCES, WEIGHTS, 1).draws(70, 9)
    assert ExampleOrder(["a"] * 4, WEIGHTS, 0, shuffle=False).draws(2, 4) == [2, 3, 0, 1]
    (one,) = {tuple(ExampleOrder([s] * 9, {s: 2.0}, 5).draws(9, 9)) for s in "ab"}
    assert one == tuple(np.random.default_rng([5, 1]).permutation(9))


def test_held_out_rows_begin_with_every_source() -> None:
    order = interleave(SOURCES, WEIGHTS)
    assert sorted(order) == list(range(40))
    assert Counter(SOURCES[i] for i in order[:8]) == {"a": 2, "b": 6}
    assert interleave(["a"] * 5, WEIGHTS) == [0, 1, 2, 3, 4]


def test_fingerprint_sees_texts_and_answers() -> None:
    def prompt(text: str, answer: str) -> Prompt:
        return Prompt("a/1", ({"role": "user", "content": text},), answer, "a")

    seen = {fingerprint([prompt(*row)]) for row in (("x", "1"), ("y", "1"), ("x", "2"))}
    assert len(seen) == 3


def test_fingerprint_sees_media() -> None:
    plain = Prompt("a", ({"role": "user", "content": "x"},), "1", "s", {"n": 1})
    assert fingerprint([replace(plain, media=(Media("image", "a.png"),))]) != fingerprint([plain])


def rlhf(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(w) for w in words])
    return int(caught.value.code or 0)


def mixture(write: Write, tmp_path: Path, trainer: dict[str, Any], **more: Any) -> str:
    def rows(start: int) -> list[dict[str, str]]:
        return [
            {"prompt": f"What is {n} + 1?", "completion": f"{n + 1}", "answer": f"{n + 1}"}
            for n in range(start, start + 30)
        ]

    sources = [
        {
            "name": "jsonl",
            "path": write(f"{label}.jsonl", rows(start)),
            "label": label,
            "weight": weight,
            "heldout_path": write(f"{label}_held.jsonl", rows(start)),
        }
        for label, start, weight in (("a", 0, 1.0), ("b", 40, 3.0))
    ]
    (tmp_path / "run.yaml").write_text(
        json.dumps({"threads": 1, "dataset": {"sources": sources}, "trainer": trainer, **more})
    )  # JSON is YAML
    return str(tmp_path / "run.yaml")


def test_an_offline_run_draws_evaluates_and_resumes_by_source(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = mixture(write, tmp_path, {"name": "sft", "batch_size": 8, "max_steps": 3, "eval_samples": 8})
    run = tmp_path / "run"
    assert rlhf("train", "--config", config, "--run-dir", run) == 0
    for row in read_jsonl(run / "trace.jsonl"):
        assert Counter(name[0] for name in row["examples"]) == {"a": 2, "b": 6}
    evaluation = json.loads((run / "summary.json").read_text())["evaluation_after"]
    a, b = evaluation["eval/a/loss"], evaluation["eval/b/loss"]
    assert min(a, b) < evaluation["eval/loss"] < max(a, b)
    assert abs(evaluation["eval/loss"] - b) < abs(evaluation["eval/loss"] - a), "six of the eight are of source b"

    data = tmp_path / "a.jsonl"
    data.write_text(data.read_text().replace("What is 3 + 1?", "What is 3 + 2?"))
    (run / "summary.json").unlink()  # as if killed at the very end
    capsys.readouterr()
    assert rlhf("train", "--resume", run) == 2
    assert "a.jsonl is not what it was" in capsys.readouterr().err


@pytest.mark.slow
def test_an_online_run_evaluates_by_source(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = {
        "name": "grpo",
        "steps": 1,
        "rollout_batch_size": 8,
        "group_size": 2,
        "eval_samples": 8,
        "sampling": {"max_tokens": 4},
    }
    config = mixture(write, tmp_path, trainer, reward={"name": "verifier", "workers": 1})
    run = tmp_path / "run"
    assert rlhf("train", "--config", config, "--run-dir", run) == 0
    evaluation = json.loads((run / "summary.json").read_text())["evaluation_after"]
    means = [evaluation[f"eval/{key}"] for key in ("reward/mean", "a/reward/mean", "b/reward/mean")]
    assert means[0] == pytest.approx(0.25 * means[1] + 0.75 * means[2])

    held = tmp_path / "b_held.jsonl"
    held.write_text(held.read_text().replace("What is 43 + 1?", "What is 43 + 2?"))
    (run / "summary.json").unlink()  # as if killed at the very end
    capsys.readouterr()
    assert rlhf("train", "--resume", run) == 2
    assert "b_held.jsonl is not what it was" in capsys.readouterr().err

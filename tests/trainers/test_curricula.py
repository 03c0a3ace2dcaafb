"""Runs whose prompts are chosen by a file of pass rates, or by the run's own scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.types.errors import DatasetError

ROWS = [{"id": n, "prompt": f"What is {n} + 7?", "answer": str(n + 7)} for n in range(14)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a data set of 14 sums, 2 of them held out, and pass rates: those with an odd id are solved."""
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, ROWS[:12])))
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, ROWS[12:])))
    rates = {str(row["id"]): 1.0 if row["id"] % 2 else 0.02 + row["id"] / 50 for row in ROWS}  # type: ignore[operator]
    (tmp_path / "passes.json").write_text(json.dumps(rates))
    return tmp_path


def base(data: Path, steps: int = 3, **dataset: Any) -> dict[str, Any]:
    return {
        "trainer": {
            "name": "grpo",
            "steps": steps,
            "rollout_batch_size": 8,
            "group_size": 4,
            "eval_samples": 2,
            "checkpoint_every": 1,
            "keep_checkpoints": 9,
        },
        "reward": {"name": "numbers"},
        "dataset": {
            "name": "jsonl",
            "path": str(data / "sums.jsonl"),
            "heldout_path": str(data / "held.jsonl"),
            **dataset,
        },
    }


def drawn(run: Path) -> list[str]:
    return [r["prompt_id"] for r in read_jsonl(run / "trace.jsonl") if r["event"] == "prompt"]


@pytest.mark.slow
def test_easy_first_by_a_file_with_which_alone_it_is_resumed(train: Any, data: Path) -> None:
    summary = train(base(data, curriculum={"path": str(data / "passes.json")}))
    assert drawn(data / "run") == [f"sums/{n}" for n in (10, 8, 6, 4, 2, 0)]
    assert summary["dropped"]["curriculum_out_of_band"] == 6
    assert "curriculum_ids_unmatched" not in summary["dropped"], "held-out ids match"
    (data / "run" / "summary.json").unlink()
    (data / "passes.json").write_text(json.dumps({str(n): 0.5 for n in range(14)}))
    with pytest.raises(DatasetError, match="changed since the checkpoint"):
        train(base(data), resume=True)


@pytest.mark.slow
def test_unseen_prompts_come_first_and_then_those_solved_sometimes(train: Any, data: Path) -> None:
    train(base(data, 9, difficulty={"explore": 0}))
    rows = [r for r in read_jsonl(data / "run" / "trace.jsonl") if r["event"] == "prompt"]
    assert len({r["prompt_id"] for r in rows[:12]}) == 12
    rate: dict[str, float] = {}
    in_band = 0
    for n, row in enumerate(rows):
        name, mean = row["prompt_id"], sum(c["score"] for c in row["completions"]) / 4
        in_band += n >= 12 and 0.1 <= rate[name] <= 0.9
        rate[name] = 0.5 * rate[name] + 0.5 * mean if name in rate else mean
    assert in_band == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "does not exist"),
        ("", "is empty"),
        ('{"1": "high"}', "is not a number"),
        ('{"id": 1, "pass_rate": 0.5}\n{"id": 1, "pass_rate": 0.75}', "occurs twice"),
        ('{"x/1": 0.5, "x/2": 0.5}', "2 of 2 ids"),
    ],
)
def test_bad_file_is_refused_before_the_model_loads(
    rlhf: Callable[..., Any],
    quick: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    says: str,
) -> None:
    path = tmp_path / "passes.jsonl"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr("rlhf_core.rl.inputs.load_policy", lambda config: pytest.fail("the model was loaded"))
    out = rlhf(*quick, "--set", f"dataset.curriculum.path={path}", "--run-dir", tmp_path / "run")
    assert out.code == 2, out.err
    assert says in out.err
    assert not (tmp_path / "run").exists()


def test_offline_runs_refuse_it(rlhf: Callable[..., Any]) -> None:
    out = rlhf("train", "--algo", "sft", "--dry-run", "--set", "dataset.difficulty.explore=0.2")
    assert out.code == 2
    assert "dataset.difficulty has no effect with algorithm 'sft'" in out.err

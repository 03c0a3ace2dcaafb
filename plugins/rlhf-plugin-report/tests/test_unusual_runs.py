"""Pages of runs that failed, go on, are damaged or empty, and of every kind of algorithm."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import rlhf_core
from rlhf_core.config import UserError
from rlhf_plugin_report.stored import open_run

from .conftest import data_of, page_of


def test_a_failed_run_says_why_and_shows_what_there_is(copy: Path) -> None:
    (copy / "summary.json").unlink()
    (copy / "failure.json").write_text(json.dumps({"status": "failed", "error": "TrainingDiverged: loss is nan"}))
    page = page_of(copy)
    assert "failed: TrainingDiverged: loss is nan" in page
    assert "reward/mean from" in page
    assert len(data_of(page)) == 16


def test_a_running_and_a_killed_run_say_so(copy: Path) -> None:
    (copy / "summary.json").unlink()
    trace = (copy / "trace.jsonl").read_text()
    (copy / "trace.jsonl").write_text(trace + '{"step": 3, "event": "prom')  # a line that is being written
    shutil.rmtree(copy / "final")
    shutil.rmtree(copy / "checkpoints")
    page = page_of(copy)
    assert any("pieces" in row for row in data_of(page)), "read with the model that the run began with"
    assert f"killed: no process works on it any more. Go on with: rlhf train --resume {copy}" in page
    assert '<span class="status interrupted">' in page
    assert "damaged" not in page.split("<script")[0]
    lock = os.open(copy, os.O_RDONLY)  # as the process of a run does
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "not over: it is running; the last line" in page_of(copy)
        for name in ("metrics.jsonl", "trace.jsonl", "plan.json"):
            os.utime(copy / name, (1.6e9, 1.6e9))
        assert "it hangs, or it was killed; the last line was written at 2020-09-13 12:26:40 UTC" in page_of(copy)
    finally:
        os.close(lock)


def test_the_best_checkpoint_is_named(copy: Path) -> None:
    assert "best checkpoint" not in page_of(copy)
    summary = json.loads((copy / "summary.json").read_text())
    summary["reports"]["best"] = {"metric": "eval/accuracy", "step": 4, "value": 0.5}
    (copy / "summary.json").write_text(json.dumps(summary))
    assert "<dt>best checkpoint</dt><dd>best/ is of step 4: eval/accuracy 0.5</dd>" in page_of(copy)


def test_an_empty_run_says_so(copy: Path) -> None:
    for path in copy.iterdir():
        if path.name not in ("plan.json", "config.yaml"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = page_of(copy)
    for wanted in (
        "no step and no evaluation was logged",
        "There is no metric with two values yet.",
        "The trace holds no completion of this run.",
        "trainer.steps",
    ):
        assert wanted in page
    assert data_of(page) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metrics.jsonl", b'{"step": 1, "reward/mean"\n{"step": 2, "loss": 1.0}\n[]\n', "metrics.jsonl: 2 damaged"),
        ("trace.jsonl", b'\xff\xfe\n{"event": "prompt", "step": 1}\n', "trace.jsonl: 2 damaged lines are left out"),
        (
            "metrics.jsonl",
            b'{"reward/mean": 1}\n{"step": 2, "loss": 1%s}\n' % (b"0" * 400),
            "metrics.jsonl: 1 damaged line",
        ),
        ("summary.json", b'{"status": "stopped", "hook_errors": 3, "warnings": 4, "dropped": []}', "stopped"),
        ("failure.json", b"{}", "completed"),
        ("samples.jsonl", b"{}}\n", "samples.jsonl: 1 damaged line is left out"),
        ("summary.json", b'{"status": ', "summary.json is damaged"),
        ("plan.json", b"", "plan.json is damaged"),
        ("environment.json", b"{", "damaged and left out"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(copy: Path, name: str, content: bytes, said: str) -> None:
    (copy / name).write_bytes(content)
    page = page_of(copy)
    assert said in page
    assert "trainer.steps" in page, "the settings are in config.yaml, too"
    assert name == "metrics.jsonl" or "reward/mean from" in page
    assert name == "trace.jsonl" or len(data_of(page)) == 16


def test_rows_of_another_shape_and_texts_that_are_none_are_left_out_and_counted(copy: Path) -> None:
    rows = [json.loads(line) for line in (copy / "trace.jsonl").read_text().splitlines()]
    prompts = [row for row in rows if row["event"] == "prompt"]
    prompts[0]["completions"][4]["completion_ids"] = [[None]]
    prompts[1]["completions"][0]["text"] = "half of a pair: \ud83d"
    prompts[1]["completions"][1]["score"] = float("nan")
    (copy / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(copy)
    assert "trace.jsonl: 1 damaged line is left out" in page
    shown = data_of(page)
    assert [row["text"] for row in shown[:1]] == ["half of a pair: ?"]
    assert shown[1]["score"] is None
    assert len(shown) == 8


def test_a_folder_without_a_plan_is_still_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        open_run(str(tmp_path))


SIZES = {"trainer.max_steps": 2, "trainer.batch_size": 4, "trainer.eval_samples": 4, "threads": 1}
DATA = {
    "sft": [{"prompt": f"Say {n}.", "completion": str(n)} for n in range(24)],
    "dpo": [{"prompt": f"Say {n}.", "chosen": str(n), "rejected": "no"} for n in range(24)],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "rows", "quantity"), [("sft", "sft", "loss"), ("dpo", "dpo", "margin"), ("reward_model", "dpo", "margin")]
)
def test_runs_that_learn_from_data_show_their_examples(tmp_path: Path, algo: str, rows: str, quantity: str) -> None:
    rlhf_core.train(algo, dataset=DATA[rows], settings=SIZES, run_dir=tmp_path / algo, progress=False)
    page = page_of(tmp_path / algo)
    shown = data_of(page)
    assert len(shown) == 8
    assert quantity in shown[0]["parts"]
    assert all(any(text[:1].isdigit() or "|>" in text for text in row["texts"].values()) for row in shown)
    assert f"median {quantity} from" in page
    assert "loss from" in page


@pytest.mark.slow
def test_ppo_shows_each_tokens_own_advantage(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"trainer.steps": 1, "trainer.rollout_batch_size": 8, "trainer.train_batch_size": 8}
    settings |= {"trainer.eval_samples": 0, "trainer.sampling.max_tokens": 6, "threads": 1}
    rows = [{"prompt": f"Say {n}."} for n in range(16)]
    rlhf_core.train(
        "ppo",
        dataset=rows,
        reward=lambda samples: [float(len(s.completion)) for s in samples],
        settings=settings,
        run_dir=tmp_path / "ppo",
        progress=False,
    )
    traced = [row for row in data_of(page_of(tmp_path / "ppo")) if "pieces" in row]
    assert traced
    for row in traced:
        assert len(row["advantages"]) == len(row["values"]) == len(row["returns"]) == row["tokens"]

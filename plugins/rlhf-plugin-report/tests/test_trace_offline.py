"""`rlhf trace show` of offline runs: what each example says and what it cost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.jsonl import read_jsonl

Rlhf = Callable[..., Any]
QUICK = (
    "--set",
    "threads=1",
    "--set",
    "trainer.batch_size=5",
    "--set",
    "trainer.micro_batch_size=2",
    "--set",
    "trainer.max_steps=2",
    "--set",
    "trainer.eval_samples=0",
)


def update(run: Path, step: int) -> dict[str, Any]:
    return next(r for r in read_jsonl(run / "trace.jsonl") if r["step"] == step and r["event"] == "update")


@pytest.mark.slow
def test_demonstrations(rlhf: Rlhf, tmp_path: Path) -> None:
    run = tmp_path / "run"
    out = rlhf("train", "--algo", "sft", *QUICK, "--set", "trainer.trace_prompts=2", "--run-dir", run)
    assert out.code == 0, out.err
    row = update(run, 2)
    assert [r["id"] for r in row["rows"]] == row["examples"]
    tokens = sum(r["tokens"] for r in row["rows"])
    assert sum(r["loss"] * r["tokens"] for r in row["rows"]) / tokens == pytest.approx(row["metrics"]["loss"], rel=1e-5)
    assert ["completion" in r for r in row["rows"]] == [True, True, False, False, False]
    second = row["rows"][1]
    shown = rlhf("trace", "show", run, "--step", 2, "--prompt", second["id"].rsplit("/", 1)[-1]).out
    for part in (
        f"example {second['id']}",
        second["prompt"],
        second["completion"],
        "5 examples",
        *(f"{r['loss']:.4f}" for r in row["rows"]),
        *row["examples"],
        "grad_norm",
    ):
        assert part in shown
    assert "trainer.trace_prompts" in rlhf("trace", "show", run, "--step", 2, "--prompt", row["examples"][4]).out
    assert json.loads(rlhf("trace", "show", run, "--step", 2, "--json").out)["prompt"] == row["rows"][0]
    assert rlhf("trace", "show", run, "--step", 2, "--prompt", "nobody").code == 2


@pytest.mark.parametrize(("algorithm", "same"), [("reward_model", ("loss", "margin")), ("dpo", ("loss",))])
def test_pairs(rlhf: Rlhf, tmp_path: Path, algorithm: str, same: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Is {n} enough?", "chosen": "Yes.", "rejected": f"No, {n}."} for n in range(10)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = (
        "--dataset",
        pairs,
        "--set",
        "dataset.heldout_fraction=0",
        *(("--set", "trainer.sample_prompts=0") if algorithm == "dpo" else ()),
    )
    out = rlhf("train", "--algo", algorithm, *QUICK, *more, "--run-dir", run)
    assert out.code == 0, out.err
    row = update(run, 1)
    for name in same:
        assert sum(r[name] for r in row["rows"]) / 5 == pytest.approx(row["metrics"][name], rel=1e-4, abs=1e-6)
    assert all(r["margin"] == pytest.approx(r["chosen"] - r["rejected"]) for r in row["rows"])
    shown = rlhf("trace", "show", run, "--step", 1).out
    for part in (
        row["rows"][0]["chosen_text"],
        row["rows"][0]["rejected_text"],
        "margin",
        f"{row['rows'][4]['margin']:.4f}",
    ):
        assert part in shown


@pytest.mark.long
@pytest.mark.slow
def test_two_ranks_trace_what_one_does(rlhf: Callable[..., Any], tmp_path: Path) -> None:
    words = ["train", "--algo", "sft", *QUICK]
    assert rlhf(*words, "--run-dir", tmp_path / "1").code == 0
    command = [sys.executable, "-m", "rlhf_core.cli.main", *words, "--nproc", "2", "--run-dir", str(tmp_path / "2")]
    subprocess.run(command, check=True, timeout=250, capture_output=True)
    one, two = (update(tmp_path / n, 1)["rows"] for n in ("1", "2"))
    assert [r.pop("loss") for r in one] == pytest.approx([r.pop("loss") for r in two], rel=1e-4)
    assert one == two

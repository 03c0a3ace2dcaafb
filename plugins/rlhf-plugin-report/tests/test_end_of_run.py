"""The page at the end of every run: written however it ended, said where, and never the reason for a failure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_plugin_report.at_end
from rlhf_plugin_report.hook import page as hook

from .conftest import data_of

WORDS = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic"]
SMALL = ["steps=2", "rollout_batch_size=8", "eval_samples=2", "sampling.max_tokens=8", "checkpoint_every=1"]
TRAIN = [*WORDS, *(word for s in SMALL for word in ("--set", f"trainer.{s}")), "--set", "threads=1"]


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLHF_REPORT")


def digests(run: Path) -> dict[str, str]:
    """Of everything that is no time."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = {k: v for k, v in json.loads((run / "summary.json").read_text()).items() if k != "seconds"}
    texts = {"metrics": [{k: v for k, v in row.items() if k != "time"} for row in metrics], "summary": summary}
    weights = (run / "final" / "model.safetensors").read_bytes()
    return {**{k: json.dumps(v) for k, v in texts.items()}, "weights": hashlib.sha256(weights).hexdigest()}


@pytest.mark.slow
def test_a_run_ends_with_its_page_which_changes_no_other_file(
    rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = rlhf("train", *TRAIN, "--run-dir", "with")
    assert ran.code == 0, ran.err
    assert ran.err.rstrip().endswith("page:    with/report.html")
    assert len(data_of(Path("with/report.html").read_text())) == 16
    monkeypatch.setenv("RLHF_REPORT", "0")
    ran = rlhf("train", *TRAIN, "--run-dir", "without")
    assert "page:" not in ran.err
    assert {p.name for p in Path("with").iterdir()} - {p.name for p in Path("without").iterdir()} == {"report.html"}
    assert digests(Path("with")) == digests(Path("without"))


@pytest.mark.slow
def test_an_interrupted_run_has_a_page_which_its_resume_writes_anew(
    rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlhf_core.runs.session import RunSession

    boundary = RunSession.boundary

    def interrupted(self: RunSession, step: int, *rest: Any) -> bool:
        if step == 1 and not self.resuming:
            self.interrupted = True
        return boundary(self, step, *rest)

    monkeypatch.setattr(RunSession, "boundary", interrupted)
    ran = rlhf("train", *TRAIN, "--run-dir", "run")
    assert ran.code == 130
    first = Path("run/report.html").read_text()
    assert "interrupted: Interrupted: stopped by Ctrl-C after step 1" in first
    assert "page:    run/report.html" in ran.err
    ran = rlhf("train", "--resume", "run")
    assert ran.code == 0, ran.err
    assert '<span class="status completed">completed</span>' in Path("run/report.html").read_text()


def test_a_failed_run_has_a_page_that_says_why(rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_core.training.learner import Learner

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError("the accelerator is on fire")

    monkeypatch.setattr(Learner, "update_sums", fails)
    ran = rlhf("train", *TRAIN, "--run-dir", "run")
    assert ran.code == 1
    assert "failed: OSError: the accelerator is on fire" in Path("run/report.html").read_text()


def test_a_run_that_never_began_leaves_no_page(rlhf: Callable[..., Any]) -> None:
    ran = rlhf("train", *TRAIN, "--set", "model.path=nowhere", "--run-dir", "run")
    assert ran.code == 2
    assert not Path("run").exists()


def test_a_page_that_cannot_be_written_is_said_once_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    from rlhf_core.hooks import RunEnd
    from rlhf_core.plugins.hooks import HookBus, HookManager

    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(rlhf_plugin_report.at_end, "write_text", full)
    bus = HookBus(HookManager(), strict=True)
    bus.manager.register(hook, name="report")
    (line,) = bus.fire("rlhf_run_closed", RunEnd(run, "completed"))
    assert line == f"page:    not written (OSError: no space left on device); try: rlhf report {run}"
    assert not bus.errors

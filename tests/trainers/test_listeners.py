"""What hooks, monitors and trackers may do to a run: end it after a step, and nothing else."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ComponentConfig, PluginError, RlhfError
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.hooks import StopRun, hookimpl

from .conftest import OFFLINE, ONLINE, Train


class Stops:
    """Raises ``StopRun`` in one hook, from its ``nth`` call on."""

    def __init__(self, hook: str, nth: int = 1) -> None:
        calls: list[int] = []

        def listen(event: Any) -> None:
            calls.append(1)
            if len(calls) >= nth:
                raise StopRun("enough")

        listen.__name__ = hook
        setattr(self, hook, hookimpl(listen))


class Watches(ComponentConfig):
    """A monitor or a tracker that ends the run or fails."""

    name: str = "watch"
    stop: bool = False

    def build(self, ctx: Any) -> Watcher:
        return Watcher(self.stop)


class Watcher:
    def __init__(self, stop: bool) -> None:
        self.stop = stop

    def observe(self, step: int, metrics: Mapping[str, float]) -> str | None:
        raise StopRun("the watcher has seen enough") if self.stop else OSError("no eyes")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise OSError("no ink")

    def close(self) -> None:
        pass


WATCH = {("monitor", "watch"): f"{__name__}:Watches", ("tracker", "watch"): f"{__name__}:Watches"}


@pytest.mark.slow
@pytest.mark.parametrize("base", [ONLINE, pytest.param(OFFLINE, marks=pytest.mark.slow)], ids=["online", "offline"])
@pytest.mark.parametrize(
    ("hook", "nth", "steps"),
    [
        ("rlhf_run_start", 1, 0),
        ("rlhf_eval_end", 1, 0),
        ("rlhf_batch_ready", 1, 1),
        ("rlhf_step_end", 2, 2),
        ("rlhf_checkpoint_saved", 1, 1),
        ("rlhf_eval_end", 2, 3),
        ("rlhf_run_end", 1, 3),
    ],
)
def test_a_hook_ends_the_run_after_a_checkpoint(
    train: Train, base: Mapping[str, Any], hook: str, nth: int, steps: int
) -> None:
    every = {"trainer": {"checkpoint_every": 1}} if hook == "rlhf_checkpoint_saved" else {}
    summary = train(base, Stops(hook, nth), change=every)
    completed = hook == "rlhf_run_end"  # nothing is left to stop
    assert (summary["status"], summary["steps"]) == ("completed" if completed else "stopped", steps)
    assert summary["stop_reason"] == (None if completed else "enough")
    run = train.folder / "run"
    newest = max(int(p.name[5:]) for p in (run / "checkpoints").iterdir())
    last = list(read_jsonl(run / "metrics.jsonl"))[-1]
    assert newest == steps
    assert last["step"] == steps, "the last evaluation carries the step it was made after"
    assert any(k.startswith("eval/") for k in last)
    assert json.loads((run / "summary.json").read_text())["status"] == summary["status"]
    assert (run / "final" / "config.json").is_file()


@pytest.mark.slow
def test_a_stopped_run_goes_on_when_resumed(train: Train) -> None:
    whole = train(ONLINE, run="whole")
    train(ONLINE, Stops("rlhf_run_start"))
    resumed = train(ONLINE, resume=True)
    assert {k: v for k, v in resumed.items() if k != "seconds"} == {k: v for k, v in whole.items() if k != "seconds"}


def test_a_monitor_ends_the_run_and_the_trace_says_why(train: Train) -> None:
    summary = train(OFFLINE, change={"monitors": [{"name": "watch", "stop": True}]}, components=WATCH)
    assert (summary["status"], summary["steps"], summary["stop_reason"]) == (
        "stopped",
        1,
        "the watcher has seen enough",
    )
    (row,) = [r for r in read_jsonl(train.folder / "run" / "trace.jsonl") if r["event"] == "warning"]
    wanted = {"step": 1, "stage": "monitor", "event": "warning", "monitor": "watch", "stops": True}
    assert row == {**wanted, "text": "the watcher has seen enough"}


def test_one_listener_that_stops_does_not_silence_the_others(train: Train) -> None:
    heard: list[int] = []

    class Hears:
        @hookimpl
        def rlhf_step_end(self, event: Any) -> None:
            heard.append(event.step)

    train(OFFLINE, Hears(), Stops("rlhf_step_end"), Hears())
    assert heard == [1, 1]


def test_a_plugin_may_refuse_a_plan(train: Train) -> None:
    with pytest.raises(RlhfError, match="stopped the run before it began: enough"):
        train(OFFLINE, Stops("rlhf_plan_resolved"))
    assert not (train.folder / "run").exists()


def test_a_tracker_and_a_monitor_that_fail_are_counted(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    both = {"monitors": [{"name": "watch"}], "trackers": [{"name": "watch"}]}
    with caplog.at_level(logging.WARNING):
        summary = train(OFFLINE, change=both, components=WATCH)
    assert summary["status"] == "completed"
    assert summary["hook_errors"] == {"monitor/watch:observe": 3, "tracker/watch:log": 5}
    said = [r.getMessage() for r in caplog.records if "only counted" in r.getMessage()]
    assert len(said) == 2
    assert f"log() of tracker 'watch' (pytest {pytest.__version__}) raised OSError: no ink" in "\n".join(said)


@pytest.mark.parametrize("slot", ["monitors", "trackers"])
def test_strict_plugins_ends_the_run_at_the_first_failure(train: Train, slot: str) -> None:
    with pytest.raises(PluginError, match=r"of (monitor|tracker) 'watch' \(pytest .*\) raised OSError"):
        train(OFFLINE, change={slot: [{"name": "watch"}]}, components=WATCH, strict=True)
    assert not Path(train.folder / "run" / "summary.json").exists()

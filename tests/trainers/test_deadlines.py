"""Whatever hangs in a run is named, with step and line; the last complete checkpoint stays, and can be gone on with."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlhf_core.config import ComponentConfig
from rlhf_core.hooks import hookimpl
from rlhf_core.plugins.component import DeadlineSettings
from rlhf_core.plugins.component_calls import Watchdog, time_limit
from rlhf_core.rewards import Sample, Score
from rlhf_core.types.errors import DeadlineExceeded

from .conftest import OFFLINE, ONLINE, Train

OFFLINE_CHECKPOINTS = {"max_steps": 2, "eval_samples": 0}
CHECKPOINTS = {"steps": 2, "eval_samples": 0, "checkpoint_every": 1}


class HangingConfig(ComponentConfig):
    """A reward that hangs in its second call."""

    name: str = "hanging"
    component: ClassVar[str] = f"{__name__}:Hanging"


class Hanging:
    def __init__(self, config: HangingConfig) -> None:
        self.calls = 0

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        self.calls += 1
        if self.calls == 2:
            regex()
        return [Score(float(len(s.completion) % 3)) for s in samples]


def regex() -> None:
    """Holds the interpreter, so that no thread of this process can look at the clock."""
    re.match(r"(a+)+$", "a" * 40 + "b")


def sleep() -> None:
    time.sleep(60)


def loop() -> None:
    while True:
        pass


def wait() -> None:
    threading.Event().wait()


@pytest.mark.slow
def test_a_reward_that_hangs_is_named_and_the_last_checkpoint_stays(train: Train) -> None:
    components = {("reward", "hanging"): f"{__name__}:HangingConfig"}
    change = {"trainer": {**CHECKPOINTS, "deadlines": {"reward_s": 0.5}}, "reward": {"name": "hanging"}}
    with pytest.raises(DeadlineExceeded) as caught:
        train(ONLINE, change=change, components=components)
    text = str(caught.value)
    assert text.startswith("step 2: score() of reward 'hanging'")
    assert "for 8 completions did not end within 0.5 s" in text
    assert "in regex\n" in text, "where it hangs"
    assert "trainer.deadlines.reward_s" in text
    run = train.folder / "run"
    assert json.loads((run / "failure.json").read_text())["status"] == "failed"
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000001"]
    train(ONLINE, components=components, resume=True)
    assert json.loads((run / "summary.json").read_text())["status"] == "completed"


@pytest.mark.parametrize("hang", [sleep, loop, wait])
def test_whatever_hangs_is_interrupted(hang: Callable[[], None]) -> None:
    def carefully() -> None:
        with contextlib.suppress(Exception):  # a deadline is not among what it swallows
            hang()

    watchdog = Watchdog(DeadlineSettings(reward_s=0.1), "", print)
    with (
        watchdog.active(),
        pytest.raises(DeadlineExceeded, match=f"in {hang.__name__}\n"),
        time_limit("reward", "score()"),
    ):
        carefully()


@pytest.mark.parametrize(("limit", "stage"), [("listener_s", "hook rlhf_step_end"), ("update_s", "the whole step")])
def test_every_other_stage_has_a_deadline(train: Train, limit: str, stage: str) -> None:
    class Listener:
        @hookimpl
        def rlhf_step_end(self, event: Any) -> None:
            if event.step == 2:
                time.sleep(60)

    with pytest.raises(DeadlineExceeded, match=f"step 2: {stage}.* did not end within 1 s"):
        train(OFFLINE, Listener(), change={"trainer": {**OFFLINE_CHECKPOINTS, "deadlines": {limit: 1}}})


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    """The reward waits for a thread of its own; the interpreter would wait for it, too."""
    script = tmp_path / "hang.py"
    script.write_text(
        "import sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from rlhf_core.cli import main as cli\n"
        "from rlhf_core.plugins.component import DeadlineSettings\n"
        "from rlhf_core.plugins.component_calls import Watchdog, time_limit\n"
        "def train(**_):\n"
        "    with Watchdog(DeadlineSettings(reward_s=0.3), 'go on with: rlhf train --resume RUN', print).active():\n"
        "        with time_limit('reward', 'score() of reward pooled'):\n"
        "            ThreadPoolExecutor(1).submit(time.sleep, 600).result()\n"
        "cli.cli.main = train\n"
        "sys.argv = ['rlhf']\n"
        "cli.main()\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert out.returncode == 1
    assert "error: before the first step: score() of reward pooled did not end within 0.3 s" in out.stderr


def test_code_that_answers_no_signal_is_ended_with_the_process(tmp_path: Path) -> None:
    script = tmp_path / "deaf.py"
    script.write_text(
        "import time\n"
        "from rlhf_core.plugins.component import DeadlineSettings\n"
        "from rlhf_core.plugins import component_calls as deadline\n"
        "deadline.GRACE_S, deadline.owns_process = 0.3, True\n"
        "def deaf():\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(60)\n"
        "        except BaseException:\n"
        "            pass\n"
        "kept = lambda error: print('recorded:', str(error).splitlines()[0], flush=True)\n"
        "with deadline.Watchdog(DeadlineSettings(reward_s=0.3), '', kept).active():\n"
        "    with deadline.time_limit('reward', 'score() of reward deaf'):\n"
        "        deaf()\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=50)
    assert out.returncode == 1
    assert out.stdout == "recorded: before the first step: score() of reward deaf did not end within 0.3 s\n"
    assert "in deaf\n    time.sleep(60)" in out.stderr


@pytest.mark.slow
def test_rewards_may_run_in_workers(train: Train) -> None:
    """The same scores as in this process."""
    rules = {"name": "programmatic", "length": {"max": 4, "zero_at": 8}, "mode": "continuous"}
    settings = {"reward": rules}
    train(ONLINE, change={"trainer": CHECKPOINTS, **settings}, run="here")
    train(ONLINE, change={"trainer": {**CHECKPOINTS, "reward_workers": 2}, **settings}, run="workers")
    here, workers = ((train.folder / run / "trace.jsonl").read_text() for run in ("here", "workers"))
    assert here == workers

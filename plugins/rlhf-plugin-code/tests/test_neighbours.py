"""A hostile program beside others: their verdicts stay right, or are errors, however little CPU is left for them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_plugin_code import results
from rlhf_plugin_code.config import AssertsConfig
from rlhf_plugin_code.inside.tasks import Look, Task
from rlhf_plugin_code.inside.waiting import OwnClock
from rlhf_plugin_code.sandbox import Limits, Sandbox, SandboxError
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig

HOSTILE = """
import os
for _ in range(14):
    if os.fork() == 0:
        for leave in (os.setsid, os.setpgrp):
            try: leave()
            except OSError: pass
        while True: pass
while True: pass
"""
WORKING = """
import time
def f(x):
    while time.process_time() < {cpu_s}: pass
    return x * x
"""


@contextmanager
def starved() -> Iterator[None]:
    """Fourteen sessions outside of any sandbox that burn CPU: nothing that a sandbox denies can hold them back."""
    burn = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(burn, start_new_session=True) for _ in range(14)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


@pytest.mark.slow
def test_a_hostile_program_turns_no_neighbours_verdict(sandbox: Sandbox) -> None:
    hostile_ended = threading.Event()

    def attack() -> None:
        with Sandbox(Limits(timeout_s=1.0)) as other:
            other.script(HOSTILE)
        hostile_ended.set()

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        while not hostile_ended.is_set():
            try:
                report = sandbox.tests(WORKING.format(cpu_s=0.7), ["assert f(12) == 144"], timeout_s=1.5)
            except SandboxError:
                continue
            assert report.passed == (True,), report
    finally:
        thread.join()


@pytest.mark.slow
def test_a_program_that_waits_for_a_cpu_is_not_late(sandbox: Sandbox) -> None:
    with starved():
        report = sandbox.tests(WORKING.format(cpu_s=0.3), ["assert f(12) == 144"], timeout_s=0.6)
    assert report.passed == (True,), report
    assert report.program.seconds > 0.6, "there was no competition for the CPUs"


def test_new_sessions_and_groups_are_denied(sandbox: Sandbox) -> None:
    code = """
        import os
        if os.fork(): os.wait()  # the first process leads a group already
        else:
            for leave in (os.setsid, os.setpgrp):
                try: leave()
                except PermissionError: print("denied", flush=True)
    """
    assert sandbox.script(textwrap.dedent(code)).stdout == "denied\ndenied\n"


@pytest.mark.slow
@pytest.mark.parametrize("code", ["import time\ntime.sleep(60)", "while True: pass"])
def test_a_late_program_is_late_on_a_busy_machine_too(sandbox: Sandbox, code: str) -> None:
    with starved():
        assert sandbox.script(code, timeout_s=0.3).why == "time"


MASKED = """
from rlhf_plugin_code.sandbox import Limits, Sandbox
with Sandbox(Limits(timeout_s=0.3)) as box:
    print(box.script("import os; print(os.path.exists('/proc/self'))").stdout.strip(), "no /proc" in box.isolation)
    print(box.script("while True: pass").why, box.script("import time; time.sleep(60)").why)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to cover a part of /proc")
def test_time_is_known_where_programs_have_no_proc() -> None:
    """As in a container that masks parts of its /proc: the kernel then mounts no other one."""
    cover = 'mount -t tmpfs none /proc/irq && exec "$0" -c "$1"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", cover, sys.executable, MASKED], capture_output=True, text=True)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == "False False\ntime time\n", done.stderr


def look(cpu_s: float, waited_s: float = 0.0, *, runnable: bool = True, thread: int = 1, ended_s: float = 0.0) -> Look:
    """One thread at one moment, and the time of children that have ended."""
    return Look({thread: Task(runnable, cpu_s, waited_s)}, cpu_s + ended_s, 10.0, 1)


@pytest.mark.parametrize(
    ("looks", "own_s"),
    [
        ([look(1.0), look(2.0)], 2.0),  # it runs all the time
        ([look(0.25, 0.75), look(0.5, 1.5)], 0.5),  # it gets a quarter of a CPU
        ([look(0.0), look(0.0)], 0.0),  # it gets nothing, and nothing says yet how long it waits
        ([look(0.0), look(0.1, 1.9)], 0.1),  # until it runs
        ([look(0.0, runnable=False), look(0.0, runnable=False)], 2.0),  # it sleeps
        ([look(0.5), look(0.5, runnable=False)], 2.0),  # it runs and sleeps
        ([look(2.0, 12.0), look(4.0, 24.0, runnable=False)], 2.0),  # its own threads keep each other waiting
        ([look(1.0, 12.0), look(1.0, 12.0, runnable=False)], 2.0),  # and that is no excuse to sleep
        ([look(0.5, 0.5, runnable=False), look(0.1, 0.1, runnable=False, thread=2, ended_s=0.5)], 0.6),  # a child ended
    ],
)
def test_own_time_is_running_and_sleeping(looks: list[Look], own_s: float) -> None:
    clock = OwnClock(0.0, look(0.0))
    for second, seen in enumerate(looks):
        clock.advance(second + 1.0, seen)
    assert clock.own_s == pytest.approx(own_s)
    assert OwnClock(0.0, None).own_s == 0.0


def test_a_program_that_never_got_its_time_is_an_error(
    sandbox: Sandbox, sample: Callable[..., Sample], verify: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest wait is over before the first program had its time; the second needs none."""
    monkeypatch.setattr("rlhf_plugin_code.sandbox.longest_s", lambda own_s: 1.0)
    config = AssertsConfig.model_validate({"sandbox": {"timeout_s": 60.0}})
    rows = [sample(WORKING.format(cpu_s=cpu_s), tests=["assert f(3) == 9"]) for cpu_s in (30, 0)]
    starved_score, right = (verify(config, row) for row in rows)
    assert (starved_score.value, starved_score.status) == (None, ScoreStatus.ERROR)
    assert "too busy" in starved_score.detail
    assert right.value == 1.0


def test_the_workers_deadline_leaves_time_for_a_busy_machine() -> None:
    config = VerifierRewardConfig(verifier=AssertsConfig())
    assert config.deadline_s == AssertsConfig().busy_seconds > 2 * results.longest_s(5.0)
    assert VerifierRewardConfig(verifier=AssertsConfig(), timeout_s=9.0).deadline_s == 9.0

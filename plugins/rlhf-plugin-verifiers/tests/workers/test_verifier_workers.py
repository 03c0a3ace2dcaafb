"""Verifier workers: order, deadlines, every way to die, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import DeadlineExceeded, PluginError
from rlhf_core.types.rollouts import Sample, ScoreStatus
from rlhf_plugin_verifiers.reward import VerifierReward
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig, VerifierRewardConfig
from rlhf_plugin_verifiers.workers import descendants, worker_spec
from rlhf_testing import make_context
from tests.waiting import alive, wait_for

Judge = Callable[..., VerifierReward]
MakeSample = Callable[..., Sample]


def test_500_calls_come_back_in_order(judge: Judge, sample: MakeSample) -> None:
    reward = judge(workers=2)
    scores = reward.score([sample(f"echo {i}") for i in range(500)])
    assert [s.value for s in scores] == [float(i) for i in range(500)]
    assert reward.pool.restarts == 0


@pytest.mark.slow
def test_the_audit_of_many_verifications_recycles_workers() -> None:
    from scripts.faults import verifications

    with verifications.distribution():
        scores = verifications.through_pool(verifications.calls(20, 0), 1, 5.0, 100)
    assert (scores["recycle"], scores["recycled"]) == (100, 5), "500 warm-up calls and 20"


def test_a_worker_has_no_keys_but_those_its_verifier_names(
    judge: Judge, sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "JUDGE_API_KEY", "KEYBOARD"):
        monkeypatch.setenv(name, "x")
    scores = judge().score(
        [
            sample(f"variables {names}")
            for names in ("OPENAI_API_KEY HF_TOKEN AWS_SECRET_ACCESS_KEY PGPASSWORD", "JUDGE_API_KEY KEYBOARD PATH")
        ]
    )
    assert [s.value for s in scores] == [0.0, 3.0]


@pytest.mark.parametrize("call", ["hang", "spin"])
def test_a_late_call_is_killed_and_the_others_are_not(judge: Judge, sample: MakeSample, call: str) -> None:
    reward = judge(workers=2)
    pids = [w.pid for w in reward.pool.workers]
    scores = reward.score([sample("echo 1"), sample(call), *[sample(f"echo {i}") for i in range(2, 20)]])
    assert scores[1].status is ScoreStatus.TIMEOUT
    assert scores[1].value is None
    assert "test/0 in 1 s" in scores[1].detail
    assert [s.value for i, s in enumerate(scores) if i != 1] == [1.0, *map(float, range(2, 20))]
    wait_for(lambda: sum(map(alive, pids)) == 1, "the end of the late worker, which ignores SIGTERM")
    assert reward.score([sample("echo 4")] * 4)[3].value == 4.0
    assert reward.pool.restarts == 1


FAILURES = {
    "segfault": ("SIGSEGV", 1),
    "exit": ("exit code 7", 1),
    "sys_exit": ("SystemExit: 3", 0),
    "raise_": ("ValueError: no such thing", 0),
    "memory": ("MemoryError", 0),
    "wrong": ("returned 1.0, expected a Score", 0),
    "infinite": ("part 'part' of the verdict is inf", 0),
}
"""Call -> what its score says, and how many workers it costs."""


def test_a_failed_call_is_an_error_and_the_next_one_works(judge: Judge, sample: MakeSample) -> None:
    reward = judge(memory_mb=2048)
    for call, (detail, restarts) in FAILURES.items():
        before = reward.pool.restarts
        bad, good = reward.score([sample(call), sample("echo 2")])
        assert (bad.status, bad.value) == (ScoreStatus.ERROR, None), call
        assert detail in bad.detail, call
        assert good.value == 2.0, call
        assert reward.pool.restarts - before == restarts, call


def test_a_deadline_that_nobody_set_is_the_same_after_a_dump() -> None:
    """A resumed run, and every rank, has its configuration from the plan, in which every default is written out."""

    class Slow(NumericVerifierConfig):
        @property
        def seconds(self) -> float:
            return 7.0

    config = VerifierRewardConfig(verifier=Slow())
    again = VerifierRewardConfig.model_validate({**config.model_dump(mode="json"), "verifier": Slow()})
    assert config.deadline_s == again.deadline_s == 7
    assert VerifierRewardConfig(verifier=Slow(), timeout_s=9).deadline_s == 9


def test_workers_are_recycled_after_calls_and_above_a_size(judge: Judge, sample: MakeSample) -> None:
    reward = judge(recycle_after_calls=3)
    pids = [s.value for s in reward.score([sample("pid")] * 7)]
    assert [pids.index(p) for p in pids] == [0, 0, 0, 3, 3, 3, 6]
    assert (reward.pool.recycled, reward.pool.restarts) == (2, 0)
    reward.score([sample("pid")] * 2)
    assert (reward.pool.recycled, reward.pool.restarts) == (3, 0), "one has just gone, and none is there yet"
    large = judge(recycle_above_mb=200, timeout_s=20)
    first, second, third = (s.value for s in large.score([sample("pid"), sample("keep 300"), sample("pid")]))
    assert first == second != third
    assert (large.pool.recycled, large.pool.restarts) == (1, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_lost_call_costs_no_new_start(judge: Judge, sample: MakeSample, tmp_path: Path) -> None:
    reward = judge(verifier={"name": "naughty", "starts": str(tmp_path / "starts")}, timeout_s=1.0)
    below = len(descendants(os.getpid()))
    for number, call in enumerate(("hang", "segfault", "exit", "daemonize /dev/null"), 1):
        assert not reward.score([sample(call)])[0].ok, call
        assert reward.score([sample("echo 3")])[0].value == 3.0, call
        assert reward.pool.restarts == number, call
        wait_for(lambda: len(descendants(os.getpid())) == below, f"only the worker that took over from {call}")
    assert (tmp_path / "starts").read_text() == "started\n", "the verifier was built once"


def test_a_verifier_with_threads_is_not_forked(judge: Judge, sample: MakeSample) -> None:
    reward = judge(verifier={"name": "naughty", "thread": True})
    worker = reward.pool.workers[0]
    assert worker.process
    assert worker.pid == worker.process.pid
    bad, good = reward.score([sample("segfault"), sample("echo 2")])
    assert "SIGSEGV" in bad.detail
    assert good.value == 2.0


NOISE = (
    "noise\\n",
    "null\\n",
    "[1]\\n",
    "{}\\n",
    '{"ready": 1}\\n',
    '{"call": 1}\\n',
    '{"call": 1, "score": 3}\\n',
    "\\xff\\n",
)


@pytest.mark.slow
@pytest.mark.parametrize("thread", [False, True])
def test_stray_writes_cost_one_verdict(judge: Judge, sample: MakeSample, thread: bool) -> None:
    reward = judge(verifier={"name": "naughty", "thread": thread}, timeout_s=20.0)
    for noise in NOISE:
        bad, *good = reward.score([sample(f"scribble {noise}"), *[sample(f"echo {n}") for n in range(3)]])
        assert (bad.status, bad.value) == (ScoreStatus.ERROR, None), noise
        assert [s.value for s in good] == [0.0, 1.0, 2.0], noise


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_process_that_answers_holds_one_socket(judge: Judge, sample: MakeSample) -> None:
    """The line on which its parent announces processes is not for it, or for what it forks."""
    reward = judge()
    reward.score([sample("echo 1")])
    pid = reward.pool.workers[0].pid
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    assert len([link for link in links if link.startswith("socket:")]) == 1


def test_what_a_verifier_prints_does_not_reach_the_answer(judge: Judge, sample: MakeSample) -> None:
    assert [s.value for s in judge().score([sample("chatter")] * 3)] == [1.0] * 3


def test_a_verifier_that_forks_answers_once(judge: Judge, sample: MakeSample) -> None:
    reward = judge()
    scores = reward.score([sample("fork_and_return"), sample("echo 1"), sample("fork_and_return"), sample("echo 2")])
    assert [s.value for s in scores] == [5.0, 1.0, 5.0, 2.0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_daemon_of_a_late_call_dies_with_it(judge: Judge, sample: MakeSample, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    (score,) = judge(timeout_s=3.0).score([sample(f"daemonize {file}")])
    assert score.status is ScoreStatus.TIMEOUT
    wait_for(lambda: not alive(int(file.read_text())), "the end of the daemon")


def test_close_leaves_no_process_and_is_idempotent(judge: Judge, sample: MakeSample) -> None:
    before = set(descendants(os.getpid()))
    reward = judge(workers=3)
    reward.score([sample("fork_and_return")] * 6)
    assert set(descendants(os.getpid())) - before
    reward.close()
    reward.close()
    assert not set(descendants(os.getpid())) - before


@pytest.mark.slow
def test_workers_die_with_a_killed_trainer(naughty: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig as C\n"
        "from rlhf_plugin_verifiers.reward import VerifierReward as R\n"
        "from rlhf_core.plugins.registry import Registry\n"
        "g = Registry(disabled=())\n"
        "from rlhf_core.types.rollouts import Prompt, Sample\n"
        "o = {'verifier': 'naughty', 'workers': 2, 'timeout_s': 99}\n"
        "from rlhf_testing import make_context\n"
        "r = R(C.model_validate(o, context={'registry': g}), make_context(registry=g))\n"
        "print(*[p for w in r.pool.workers for p in (w.process.pid, w.pid)], flush=True)\n"
        "r.score([Sample(Prompt('p', ({'role': 'user', 'content': ''},)), f'hang {sys.argv[1]}/called')])\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout
    pids = [int(p) for p in trainer.stdout.readline().split()]
    assert len(pids) == 4
    wait_for((tmp_path / "called").exists, "a call that never returns; the other worker waits")
    assert all(alive(p) for p in pids)
    trainer.kill()
    trainer.wait()
    wait_for(lambda: not any(map(alive, pids)), "the end of the workers")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin as they do for a user: tests/fork_server.py forks none that has another such variable."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")


@pytest.mark.usefixtures("started")
def test_workers_import_no_torch(judge: Judge, sample: MakeSample) -> None:
    assert judge().score([sample("modules")])[0].value == 0.0


@pytest.mark.usefixtures("started")
def test_a_fresh_interpreter_not_a_fork(judge: Judge) -> None:
    reward = judge()
    assert reward.pool.workers[0].process
    command = Path(f"/proc/{reward.pool.workers[0].process.pid}/cmdline")
    if command.exists():
        assert b"rlhf_plugin_verifiers.workers.worker" in command.read_bytes()


def test_a_worker_that_is_not_ready_in_time_is_named(judge: Judge) -> None:
    named = r"worker of verifier 'naughty' \(naughty-verifiers 1\.0\) was not ready after 0\.5 s"
    with pytest.raises(DeadlineExceeded, match=named):
        judge(verifier={"name": "naughty", "slow_start": 30}, start_timeout_s=0.5)


def test_another_version_in_the_worker_is_refused(naughty: Path) -> None:
    registry = Registry(disabled=())
    config = VerifierRewardConfig.model_validate({"verifier": "naughty", "workers": 1}, context={"registry": registry})
    spec = worker_spec("verifier", config.verifier, registry)
    metadata = naughty / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "2.0"))
    with pytest.raises(PluginError, match=r"differs between the trainer and its worker[\s\S]*'1.0'[\s\S]*'2.0'"):
        VerifierReward(config, make_context(registry=_Fixed(spec["component"])))


class _Fixed:
    """A registry that still says what was planned."""

    only_core, disabled = False, frozenset[str]()

    def __init__(self, row: dict[str, str]) -> None:
        self.row = row

    def selected(self, kind: str, chosen: object) -> _Fixed:
        return self

    def describe(self) -> dict[str, str]:
        return self.row


def test_unserialisable_meta_is_an_error_of_that_sample_only(judge: Judge, sample: MakeSample) -> None:
    from dataclasses import replace

    odd = sample("echo 1")
    odd = replace(odd, prompt=replace(odd.prompt, meta={"set": {1}}))
    bad, good = judge().score([odd, sample("echo 2")])
    assert bad.status is ScoreStatus.ERROR
    assert good.value == 2.0

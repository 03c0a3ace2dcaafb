"""How programs are isolated, and what a program and its tests may say to each other."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlhf_core.config import ConfigError
from rlhf_plugin_code.inside import seccomp, values
from rlhf_plugin_code.redteam.arena import processes_below
from rlhf_plugin_code.sandbox import UNSAFE, Limits, Sandbox, SandboxError
from tests.waiting import alive, wait_for

LOOK = """
import os, sys
status = dict(line.split(':\\t', 1) for line in open('/proc/thread-self/status') if ':\\t' in line)
print(os.getpid(), os.getuid(), status['CapEff'].strip(), status['NoNewPrivs'].strip(), status['Seccomp'].strip())
print(sorted(os.listdir('/tmp')), sorted(p for p in os.listdir('/proc') if p.isdigit()), os.listdir('/proc/self/fd'))
"""


def test_what_a_program_sees(sandbox: Sandbox) -> None:
    ended = sandbox.command(["python3", "-c", LOOK])
    first, second = ended.stdout.splitlines()
    assert first == "1 1000 0000000000000000 1 2"
    assert second == "[] ['1'] ['0', '1', '2', '3']"  # 3 is the folder that it is reading
    assert "landlock" in sandbox.isolation


def test_input_output_arguments_and_exit_codes(sandbox: Sandbox) -> None:
    ended = sandbox.script("import sys\nprint(input()[::-1], sys.argv[1])\nsys.exit(3)", "héllo\n", args=["x"])
    assert (ended.stdout, ended.code, ended.why) == ("olléh x\n", 3, "ended")
    failed = sandbox.script("def f(): return 1 / 0\nf()")
    assert failed.code == 1
    assert failed.stderr.strip().endswith("ZeroDivisionError: division by zero")
    assert "rlhf_plugin_code" not in failed.stderr


def test_programs_leave_nothing_to_each_other(sandbox: Sandbox) -> None:
    sandbox.script("import json, sys, os\nopen('x', 'w').write('x')\njson.dumps = None\nos.environ['X'] = '1'")
    after = sandbox.script("import json, os\nprint(os.listdir('/tmp'), json.dumps(1), 'X' in os.environ)")
    assert after.stdout == "[] 1 False\n"


def test_a_late_program_costs_its_deadline(sandbox: Sandbox) -> None:
    ended = sandbox.script("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(60)", timeout_s=0.3)
    assert (ended.why, ended.code) == ("time", -signal.SIGKILL)
    assert len(processes_below(sandbox)) == 2


def test_values_cross_and_comparison_is_outside(sandbox: Sandbox) -> None:
    code = """
import re, collections, decimal
def same(x): return x
def pairs(n): yield from ((i, {i}) for i in range(n))
def sort(x): x.sort()
def match(x): return re.match('a+', x)
def named(): return collections.namedtuple('P', 'a b')(1, 2)
def apply(g, x): return g(g(x))
class Box:
    def __init__(self, x): self.x = x
    def add(self, y): self.x += y; return self
"""
    tests = [
        "for v in (None, True, -3, 10**5000, 1.5, float('inf'), 'é\\ud800', b'\\xff', 2j, [1, (2,)], {1: {2: 3}}, {4},"
        " frozenset({5}), range(3)):\n    assert same(v) == v and type(same(v)) is type(v)",
        "assert list(pairs(2)) == [(0, {0}), (1, {1})]",
        "a = [3, 1, 2]\nsort(a)\nassert a == [1, 2, 3]",
        "assert match('aab')\nassert not match('b')",
        "assert named() == (1, 2)",
        "assert apply(lambda x: x * 3, 2) == 18",
        "assert Box(3).add(4).x == 7",
        "try:\n    same()\n    assert False\nexcept TypeError as error:\n    assert 'x' in str(error)",
        "assert same(1) == 2",
        "assert nothing(1) == 2",
    ]
    report = sandbox.tests(code, tests, names=["same", "pairs", "sort", "match", "named", "apply", "Box", "nothing"])
    assert report.passed == (True,) * 8 + (False, False), report.reasons
    assert report.reasons[8].startswith("AssertionError")
    assert "the program has no nothing" in report.reasons[9]


def test_a_program_that_hangs_in_one_test_keeps_what_it_passed(sandbox: Sandbox) -> None:
    report = sandbox.tests(
        "def f(x):\n    while x: pass\n    return 1", ["assert f(0)", "assert f(1)", "assert f(0)"], timeout_s=0.5
    )
    assert report.passed == (True, False, False)
    assert report.late
    assert not report.broken


@pytest.mark.parametrize(
    ("setup", "why"), [("import no_such_module", "No module named"), ("while True: pass", "the tests did not end")]
)
def test_tests_that_cannot_run_are_broken(sandbox: Sandbox, setup: str, why: str) -> None:
    report = sandbox.tests("def f(): return 1", ["assert f()"], setup=setup, timeout_s=0.3)
    assert why in report.broken
    assert report.program.own_s < 1.0, "ended by its CPU limit, not by its deadline"


def test_packages_are_there_only_when_asked_for(sandbox: Sandbox) -> None:
    assert "ModuleNotFoundError" in sandbox.script("import numpy").stderr
    with Sandbox(Limits(memory_mb=2048, timeout_s=20.0, processes=64), packages=True) as open_one:
        ended = open_one.script("import numpy; print(numpy.arange(3).sum())")
        assert ended.stdout == "3\n", ended.stderr


def test_a_readable_folder_below_tmp_is_seen_and_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "module.py").write_text("answer = 42")
        code = f"""
            import os, sys
            sys.path.append({folder!r})
            import module
            print(module.answer, os.listdir("/tmp") == [{os.path.basename(folder)!r}])
            open(os.path.join("/tmp", "mine"), "w").close()
            open({folder!r} + "/module.py", "w")
        """
        with Sandbox(readable=[folder]) as box:
            ended = box.script(textwrap.dedent(code))
        assert ended.stdout == "42 True\n", ended.stderr
        assert "Read-only file system" in ended.stderr


def kill(sandbox: Sandbox) -> None:
    """SIGKILL all of a sandbox's processes and wait until its line is closed."""
    for pid in processes_below(sandbox):
        os.kill(pid, signal.SIGKILL)
    assert sandbox._process
    assert sandbox._process.control.recv(1) == b""


def test_a_killed_sandbox_comes_back() -> None:
    with Sandbox() as box:
        kill(box)
        assert box.script("print(1)").stdout == "1\n"
        assert box.starts == 2


def test_a_sandbox_killed_at_work_says_so_and_comes_back() -> None:
    with Sandbox() as box, ThreadPoolExecutor(1) as pool:
        pids, pending = processes_below(box), pool.submit(box.script, "import time; time.sleep(60)")
        wait_for(lambda: len(processes_below(box)) > len(pids), "the program")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="gave no answer"):
            pending.result()
        assert box.script("print(1)").stdout == "1\n"
        assert box.starts == 2


def test_a_dead_sandbox_costs_forked_processes_nothing() -> None:
    """As in a verifier's worker, whose answering processes are forked with the sandbox that it started."""
    with Sandbox() as box:
        kill(box)
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                code = 1
                with contextlib.suppress(BaseException):
                    code = int(box.script("print(1)").stdout != "1\n")
                os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_programs_small_output_leaves_room_for_all_verdicts() -> None:
    with Sandbox(Limits(output_kb=1, timeout_s=20.0)) as box:
        report = box.tests("def f(x): return x", [f"assert f({n}) == {n + n % 2}, 'a' * 200" for n in range(60)])
        assert report.passed == (True, False) * 30
        assert not report.broken
        assert box.script("print('a' * 2000)").code != 0, "it may not write so much"


def test_without_isolation_running_is_refused_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sandbox._try

    def refuse(self: Sandbox, prefix: list[str], isolated: bool) -> dict[str, object]:
        return {"refused": "unshare: Operation not permitted"} if isolated else real(self, prefix, isolated)

    monkeypatch.setattr(Sandbox, "_try", refuse)
    with pytest.raises(ConfigError, match="no isolation") as caught:
        Sandbox().start()
    assert caught.value.exit_code == 2
    assert "unsafe_local_execution: true" in caught.value.fix
    with Sandbox(Limits(timeout_s=1.0), unsafe_local_execution=True) as open_one:
        assert open_one.isolation == UNSAFE
        ended = open_one.script(
            "import os\nopen('x', 'w')\nif os.fork(): print(os.listdir())\nelse:\n"
            "    os.setsid()\n    __import__('time').sleep(60)"
        )
        assert ended.stdout == "['x']\n"
        assert open_one.script("import os; print(os.listdir())").stdout == "[]\n"
        assert len(processes_below(open_one)) == 1


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_inside_bubblewrap_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with Sandbox() as box:
        assert box.isolation.startswith("bubblewrap and namespaces, seccomp")
        assert "no /proc" not in box.isolation
        assert box.script("import os; print(os.getuid(), os.listdir('/tmp'))").stdout == "1000 []\n"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_well_formed_for_both_machines(machine: str) -> None:
    lines = [seccomp.program(machine)[i : i + 8] for i in range(0, len(seccomp.program(machine)), 8)]
    for index, line in enumerate(lines):
        code, yes, no = int.from_bytes(line[:2], sys.byteorder), line[2], line[3]
        if code in (seccomp.EQUAL, seccomp.AT_LEAST, seccomp.ANY_BIT):
            assert index + 1 + max(yes, no) < len(lines)
    assert {"ptrace", "mount", "bpf", "keyctl", "unshare"} <= set(seccomp.DENIED[machine])
    assert len(set(seccomp.DENIED[machine].values())) == len(seccomp.DENIED[machine])


@pytest.mark.parametrize("bad", ['{"zz": []}', '{"i": []}', "{}", '{"f": [1, 0]}', '{"s": [[1]]}', '{"d": [1]}'])
def test_hostile_data_is_an_error_and_nothing_else(bad: str) -> None:
    import json

    with pytest.raises((ValueError, TypeError, KeyError, ZeroDivisionError)):
        values.rebuild(json.loads(bad), lambda data: data["nothing"])


def test_no_process_outlives_its_owner(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import os, time\nfrom rlhf_plugin_code.sandbox import Sandbox\nfrom rlhf_plugin_code.redteam.arena import "
        "processes_below\ns = Sandbox(); s.start(); print(*processes_below(s), flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    pids = [int(p) for p in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.kill()
    owner.wait()
    wait_for(lambda: not any(map(alive, pids)), "the end of the sandbox")

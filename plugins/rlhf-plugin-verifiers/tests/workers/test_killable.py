"""The one host of killable processes: what a start comes to, what a kill leaves, and that there is no second host."""

from __future__ import annotations

import ast
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_core.types.errors import DeadlineExceeded, PluginError
from rlhf_plugin_verifiers.workers import KillableProcess, descendants, receive
from tests.waiting import alive, wait_for

PLUGINS = Path(__file__).parents[3]
HEARD = "import json, os, socket, subprocess, sys, time\nline = socket.socket(fileno=int(sys.argv[1]))\nline.recv(99)\n"
TREE = """
def below(code):
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
below("import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
      "time.sleep(600)")
time.sleep(600)
"""
Start = Callable[..., KillableProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that has heard its spec on ``line`` and then runs a code."""
    started: list[KillableProcess] = []

    def make(code: str, kind: int = socket.SOCK_STREAM) -> KillableProcess:
        command = [sys.executable, "-c", HEARD + code]
        started.append(KillableProcess("the part", lambda line: [*command, str(line)], os.environ, kind))
        return started[-1]

    yield make
    for process in started:
        process.kill()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_process_is_ready_with_what_it_announces(start: Start, kind: int) -> None:
    reply, descriptors = start(r"""line.send(b'{"ready": 7}' + b"\n"); time.sleep(600)""", kind).ready({}, 60.0)
    assert (reply, descriptors) == ({"ready": 7}, [])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.exit('no such library')", "ended with exit code 1: no such library"),
        ("os.abort()", "was killed by SIGABRT"),
        (r"""line.send(b'{"failed": "no such thing"}' + b"\n")""", "no such thing"),
        (r"""line.send(b'{"other": 1}' + b"\n")""", "ended with exit code 0"),
        (r"""line.send(b"\xff\n")""", "ended with exit code 0"),
        (r"""line.send(b"[]\n")""", "ended with exit code 0"),
    ],
)
def test_a_process_that_is_never_ready_says_why(start: Start, code: str, says: str) -> None:
    with pytest.raises(PluginError, match="the part") as caught:
        start(code).ready({}, 60.0)
    assert caught.value.why == says


def test_a_late_start_is_named_and_its_kill_leaves_nothing(start: Start) -> None:
    """Also what has left the process group, and what that has started."""
    process = start(TREE)
    with pytest.raises(DeadlineExceeded, match=r"the part was not ready after 0\.2 s"):
        process.ready({}, 0.2)
    wait_for(lambda: len(descendants(process.pid)) == 2, "the processes below")
    pids = [process.pid, *descendants(process.pid)]
    process.kill()
    process.kill()
    wait_for(lambda: not any(map(alive, pids)), "the end of all that the process started")


def test_descriptors_that_nobody_expects_are_not_kept() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for expected in (0, 1):
            before = len(os.listdir("/proc/self/fd"))
            socket.send_fds(theirs, [b"{}\n"], [theirs.fileno()])
            _, descriptors = receive(ours, time.monotonic() + 60.0, expected)
            assert len(descriptors) == expected == len(os.listdir("/proc/self/fd")) - before
            for descriptor in descriptors:
                os.close(descriptor)


FORMS = {
    r"start_new_session|killpg": {"killable.py"},
    r"Popen\(": {"killable.py", "server.py", "arena.py"},
    r"os\.fork|waitpid|multiprocessing": {"fork_server.py"},
    r"SIGKILL": {"killable.py", "fork_server.py"},
    r"recv_fds": {"killable.py"},
}
"""What a host of processes needs -> the files that may hold it. ``server.py`` starts an episode's process where a fork
is not safe, and gives it to the fork server; ``arena.py`` starts the victim of attacks."""


@pytest.mark.parametrize("form", FORMS)
def test_there_is_one_host(form: str) -> None:
    """No distribution whose components run in processes starts, forks or ends them in a way of its own, but for what is
    ``inside`` the jail of programs, where no other module can be imported (ADR 0026)."""
    files = [
        file
        for name in ("verifiers", "episodes", "code")
        for file in (PLUGINS / f"rlhf-plugin-{name}" / f"rlhf_plugin_{name}").rglob("*.py")
        if file.parent.name != "inside"
    ]
    assert len(files) > 50
    assert {f.name for f in files if re.search(form, _code(f))} <= FORMS[form]


def _code(file: Path) -> str:
    """A file without its docstrings and comments."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.unparse(tree)

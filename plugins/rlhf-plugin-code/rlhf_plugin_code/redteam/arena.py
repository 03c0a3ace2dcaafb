"""Sets up what there is to win, runs one attack, and looks at everything it may have touched."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_plugin_code.redteam.attacks import GROUPS, Attack
from rlhf_plugin_code.sandbox import Ended, Limits, Sandbox, TestReport
from rlhf_plugin_verifiers.workers import descendants

LIMITS = Limits(timeout_s=1.5, memory_mb=256, disk_mb=8, processes=16, output_kb=256)
CONTROLS = (
    "secrets in the environment",
    "a secret file by its path",
    "the trainer's folder",
    "a symbolic link to a secret",
    "a TCP connection to the host",
)
"""Harmless attacks that are seen to succeed where there is no isolation; the others have no such control."""


@dataclass(frozen=True, slots=True)
class Outcome:
    group: str
    name: str
    won: str
    stopped_by: str
    seconds: float
    """On the clock."""
    neighbour: str = ""


@dataclass
class Arena:
    """A sandbox, and around it everything that an attack could want."""

    sandbox: Sandbox
    victim: subprocess.Popen[bytes]
    server: socket.socket
    abstract: socket.socket
    folder: Path
    secret: str

    def attack(self, group: str, name: str) -> Outcome:
        started = time.monotonic()
        if group == "verdicts":
            won, stopped = self._verdict(GROUPS[group][name])
        else:
            ended = self.sandbox.script(self._fill(GROUPS[group][name].code))
            won, stopped = self._claims(ended), how(ended)
        seconds = time.monotonic() - started
        return Outcome(group, name, won or self._traces(), stopped, seconds)

    def _fill(self, code: str) -> str:
        values = {
            "FILE": self.folder / "secret",
            "FOLDER": self.folder,
            "PID": self.victim.pid,
            "TRAINER": os.getpid(),
            "PORT": self.server.getsockname()[1],
            "ABSTRACT": self.abstract.getsockname()[1:].decode(),
        }
        for name, value in values.items():
            code = code.replace(f"@{name}@", str(value))
        return code

    def _claims(self, ended: Ended) -> str:
        output = ended.stdout + ended.stderr
        if self.secret in output:
            return "read the secret"
        return "claims to have won" if "WON" in ended.stdout else ""

    def _verdict(self, attack: Attack) -> tuple[str, str]:
        expected = random.randrange(10**6, 10**9)
        report = self.sandbox.tests(attack.code, [attack.test.replace("@WANTED@", str(expected))])
        won = "a test passed" if any(report.passed) else report.broken
        return won, reason(report)

    def _traces(self) -> str:
        if self.victim.poll() is not None:
            return "killed the victim"
        if (
            sorted(p.name for p in self.folder.iterdir()) != ["secret"]
            or self.secret != (self.folder / "secret").read_text()
        ):
            return "changed files"
        for listener in (self.server, self.abstract):
            try:
                listener.accept()
                return "connected"
            except BlockingIOError:
                pass
        if self.sandbox.starts != 1:
            return "broke the sandbox"
        pids = processes_below(self.sandbox)
        if len(pids) > 2:  # the one that waits outside and the one that forks
            return f"{len(pids) - 2} processes left"
        after = self.sandbox.script("print(sorted(__import__('os').listdir('/tmp')), 6 * 7)")
        return "" if after.stdout == "[] 42\n" else f"changed the next program: {after.stdout[:60]!r}"


def processes_below(sandbox: Sandbox) -> list[int]:
    return sorted((sandbox.pid, *descendants(sandbox.pid)))


@contextmanager
def arena(limits: Limits = LIMITS, box: type[Sandbox] = Sandbox) -> Generator[Arena, None, None]:
    """Everything set up, around a sandbox or, for controls, what isolates nothing; cleaned away afterwards."""
    secret = secrets.token_hex(16)
    os.environ["ARENA_SECRET"] = secret
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    server = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0arena-{secrets.token_hex(4)}")
    abstract.listen()
    with tempfile.TemporaryDirectory() as folder, box(limits) as sandbox, server, abstract:
        (Path(folder) / "secret").write_text(secret)
        inherited = os.open(Path(folder) / "secret", os.O_RDONLY)
        os.set_inheritable(inherited, True)
        for listener in (server, abstract):
            listener.setblocking(False)
        try:
            yield Arena(sandbox, victim, server, abstract, Path(folder), secret)
        finally:
            victim.kill()
            victim.wait()
            os.close(inherited)
            os.environ.pop("ARENA_SECRET", None)


def how(ended: Ended) -> str:
    """What an attack that is a whole program met: a kill, a signal, or the errors that it saw."""
    if ended.why != "ended":
        return {"time": "deadline", "memory": "memory limit of all processes", "processes": "process limit"}[ended.why]
    if ended.code < 0:
        return {
            -9: "killed",
            -11: "SIGSEGV, alone",
            -25: "file size limit (SIGXFSZ)",
            -31: "seccomp (SIGSYS)",
            -6: "SIGABRT, alone",
            -7: "SIGBUS, alone",
        }.get(ended.code, f"signal {-ended.code}")
    lines = [line for line in (*ended.stdout.splitlines(), *ended.stderr.splitlines()[-1:]) if line.strip()]
    kinds = dict.fromkeys(short(line) for line in lines)
    return ", ".join(list(kinds)[:3]) or "nothing to be had"


def short(line: str) -> str:
    for words in (
        "Operation not permitted",
        "Permission denied",
        "No such file or directory",
        "Read-only file system",
        "No such process",
        "Function not implemented",
        "No space left on device",
        "Resource temporarily",
        "Too many open files",
        "MemoryError",
        "RecursionError",
        "File too large",
        "can't start new thread",
        "SyntaxError",
        "Bad file descriptor",
        "Invalid argument",
        "Bad address",
        "Cross-device link",
    ):
        if words in line:
            return words
    return line.strip()[:60]


def reason(report: TestReport) -> str:
    why = report.reasons[0]
    return "comparison outside of the program" if why.startswith("AssertionError") else why[:90]


def as_row(outcome: Outcome) -> dict[str, Any]:
    return {
        "group": outcome.group,
        "attack": outcome.name,
        "won": outcome.won,
        "stopped_by": outcome.stopped_by,
        "seconds": round(outcome.seconds, 3),
        "neighbour": outcome.neighbour,
    }

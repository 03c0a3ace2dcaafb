"""What a program may use, how it ended, and what its tests came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.config import RlhfError

PATIENCE = 20.0
"""So many times its own time a program is given on the clock; it needs more only where the machine is too busy."""


def longest_s(own_s: float) -> float:
    """Seconds on the clock in which a program must have had its own time, or else it is starved."""
    return PATIENCE * max(own_s, 1.0)


class SandboxError(RlhfError):
    """The sandbox itself failed; nothing is known about the program."""


class CpuUnavailable(SandboxError):
    """The machine had no time for the program: others used the CPUs. Nothing is known about it."""


@dataclass(frozen=True, slots=True)
class Limits:
    timeout_s: float = 5.0
    memory_mb: int = 512
    disk_mb: int = 16
    processes: int = 16
    output_kb: int = 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended and what it wrote."""

    why: str
    """``ended``, or what it was killed for: ``time``, ``memory``, ``processes``."""
    code: int
    stdout: str
    stderr: str
    seconds: float
    """On the clock, start and clean-up of its confinement included."""
    peak_mb: float
    own_s: float = 0.0
    """Seconds that the program ran or slept, from its first instruction."""

    @property
    def good(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.why == "ended" and self.code == 0


@dataclass(frozen=True, slots=True)
class TestReport:
    """Verdict of every test, in order."""

    passed: tuple[bool, ...]
    reasons: tuple[str, ...]
    """Why a test failed; "" where it passed."""
    late: bool
    """The program was still at work when its time was over; tests that it kept from running have failed."""
    broken: str
    """Why the tests themselves cannot be run; "" if they can."""
    program: Ended

    __test__ = False


def report(
    messages: Sequence[Mapping[str, Any]], count: int, reply: Mapping[str, Any], program: Ended, complaint: str
) -> TestReport:
    """Read the harness's verdicts; a test without one has failed, unless the program never began."""
    broken = next((str(m["broken"]) for m in messages if "broken" in m), "")
    if not broken and not reply["begun"]:
        died = program.stderr.strip() or "the tests died"
        broken = complaint.strip() or ("the tests did not end" if reply["why"] == "time" else died)
    verdicts = {m["test"]: m for m in messages if "test" in m}
    late = reply["why"] == "time"
    unreached = {"ok": False, "why": "no answer in time" if late else "not reached"}
    reached = [verdicts.get(i, unreached) for i in range(count)]
    return TestReport(
        tuple(bool(m["ok"]) for m in reached), tuple(str(m["why"]) for m in reached), late, broken, program
    )


def check_memory(reply: Mapping[str, Any], right: bool) -> None:
    """Refuse a verdict against a program that the kernel may have killed for want of memory."""
    if reply["oom"] and not right:
        raise SandboxError(
            "the machine ran out of memory while the program ran",
            why="the kernel killed a process, maybe one of the program's",
            fix="fewer reward.workers, or a smaller sandbox.memory_mb",
        )

"""What a program may use, how it ended, and what its tests came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.api import RlhfError


class SandboxError(RlhfError):
    """The sandbox itself failed; nothing is known about the program."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use."""

    timeout_s: float = 5.0
    """Seconds on the clock."""
    memory_mb: int = 512
    """Address space of a process, and resident memory of all processes of a program together."""
    disk_mb: int = 16
    """Size of the private /tmp, which is in memory."""
    processes: int = 16
    """Processes and threads at a time."""
    output_kb: int = 1024
    """More output than this, to standard output, standard error or a file, ends the program."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended and what it wrote."""

    why: str
    """``ended``, or what it was killed for: ``time``, ``memory``, ``processes``."""
    code: int
    """Exit code; negative: the signal that killed it."""
    stdout: str
    stderr: str
    seconds: float
    """On the clock, start and clean-up of its confinement included."""
    peak_mb: float

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
    """Read the harness's verdicts; a test without one has failed, unless the tests never came to the program."""
    broken = next((str(m["broken"]) for m in messages if "broken" in m), "")
    verdicts = {m["test"]: m for m in messages if "test" in m}
    if not broken and not verdicts and not any("asked" in m for m in messages):
        broken = complaint.strip() or ("the tests did not end" if reply["why"] == "time" else "the tests died")
    reached = [verdicts.get(i, {"ok": False, "why": "not reached"}) for i in range(count)]
    late = reply["why"] == "time" or any(m.get("late") for m in reached)
    return TestReport(
        tuple(bool(m["ok"]) for m in reached), tuple(str(m["why"]) for m in reached), late, broken, program
    )

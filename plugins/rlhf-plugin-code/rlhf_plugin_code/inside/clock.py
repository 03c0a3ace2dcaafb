"""A program's own time: what passed while it ran or slept, not while it waited for a CPU.

Time on the clock would let a busy machine, or a hostile program beside it, make a right program late. Time on the CPU
alone would let a program sleep for ever.
"""

from __future__ import annotations

from rlhf_plugin_code.inside.tasks import Look

NOTICEABLE = 0.02
"""Share of its time that a program must have waited before the machine counts as busy."""
JITTER_S = 0.02
"""The kernel's account of what runs at this moment lags by a tick."""


class OwnClock:
    """Starts with the program's first instruction.

    Time in which no thread of the program ran was sleep or waiting. The kernel tells how long a thread waited only once
    it runs; so while one is runnable, time without running stays open, and is the program's own only when all sleep.
    Threads that wait for each other do not wait for the machine: no more is waiting than what was open. Without a look
    (/proc cannot be read) nothing is known to be its own time.
    """

    def __init__(self, now: float, look: Look | None) -> None:
        self.began = self.last = now
        self.waited_s = 0.0
        """Seconds that it wanted a CPU and had none."""
        self._open_s = self._doubtful_s = 0.0
        self._lost = False
        self._before = look

    def advance(self, now: float, look: Look | None) -> None:
        passed, self.last = now - self.last, now
        before, self._before = self._before, look
        if before is None or look is None:
            return
        known = [(task, before.tasks.get(number)) for number, task in look.tasks.items()]
        ran = sum(max(0.0, task.cpu_s - (old.cpu_s if old else 0.0)) for task, old in known)
        waited = sum(max(0.0, task.waited_s - (old.waited_s if old else 0.0)) for task, old in known)
        self._open_s = max(-JITTER_S, self._open_s + passed - max(ran, look.cpu_s - before.cpu_s))
        waited = max(0.0, min(waited, self._open_s))
        self.waited_s += waited
        self._open_s -= waited
        self._lost |= bool(before.tasks.keys() - look.tasks.keys())
        if not any(task.runnable for task in look.tasks.values()):
            if self._lost:  # how long those waited that have ended, nobody knows any more
                self._doubtful_s += max(0.0, self._open_s)
            self._open_s, self._lost = 0.0, False

    @property
    def passed_s(self) -> float:
        return self.last - self.began

    @property
    def own_s(self) -> float:
        """Seconds that are the program's own beyond doubt."""
        if self._before is None:
            return 0.0
        busy = self.waited_s > NOTICEABLE * self.passed_s
        return self.passed_s - self.waited_s - max(0.0, self._open_s) - (self._doubtful_s if busy else 0.0)

"""What the processes of a program do at this moment, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
STATE, PARENT, USER, THREADS, RESIDENT = 0, 1, slice(11, 15), 17, 21
"""Fields of /proc/PID/stat behind the program's name."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thread."""

    runnable: bool
    """It runs, or waits for a CPU."""
    cpu_s: float
    """Seconds on a CPU so far."""
    waited_s: float
    """Seconds that it waited for a CPU until it got one, each time; a wait that still lasts is not in it."""


@dataclass(frozen=True, slots=True)
class Look:
    """All processes of a program at one moment."""

    tasks: dict[int, Task]
    """By thread."""
    cpu_s: float
    """Seconds on a CPU, those of children included that have ended and were waited for."""
    resident_mb: float
    processes: int


class Watch:
    """Reads /proc by a descriptor; ``everything``: all in it but this process is the program."""

    def __init__(self, proc: int, everything: bool) -> None:
        self.proc, self.everything = proc, everything
        self.pid = int(os.readlink("self", dir_fd=proc))
        self.idle_mb = self._stat(str(self.pid))[1]

    def look(self) -> Look:
        """All processes below this one. Memory counts as far as they do not share it with this one."""
        tasks: dict[int, Task] = {}
        cpu_s = resident_mb = 0.0
        pids = [p for p in (self._all() if self.everything else self._below(self.pid)) if p != self.pid]
        for pid in pids:
            try:
                fields, megabytes = self._stat(str(pid))
                tasks |= self._tasks(pid, fields)
            except (OSError, IndexError, ValueError):
                continue
            cpu_s += sum(map(int, fields[USER])) / TICKS
            resident_mb += max(0.0, megabytes - self.idle_mb)
        return Look(tasks, max(cpu_s, sum(t.cpu_s for t in tasks.values())), resident_mb, len(pids))

    def oom_kills(self) -> int:
        """Processes that the kernel has killed so far, on the whole machine, because memory ran out."""
        try:
            words = self._read("vmstat").split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            return 0

    def _tasks(self, pid: int, fields: list[str]) -> dict[int, Task]:
        if fields[THREADS] == "1":
            return {pid: self._task(str(pid), fields)}
        folder = f"{pid}/task"
        threads = self._names(folder)
        return {t: self._task(f"{folder}/{t}", self._stat(f"{folder}/{t}")[0]) for t in threads}

    def _task(self, folder: str, fields: list[str]) -> Task:
        on_cpu, waited = (int(number) / 1e9 for number in self._read(f"{folder}/schedstat").split()[:2])
        return Task(fields[STATE] == "R", on_cpu, waited)

    def _stat(self, folder: str) -> tuple[list[str], float]:
        fields = self._read(f"{folder}/stat").rpartition(")")[2].split()
        return fields, int(fields[RESIDENT]) * PAGE / 2**20

    def _all(self) -> list[int]:
        return self._names(".")

    def _below(self, pid: int) -> Iterator[int]:
        for child in map(int, self._read(f"{pid}/task/{pid}/children").split()):
            yield child
            try:
                yield from self._below(child)
            except OSError:  # it has just ended
                continue

    def _names(self, folder: str) -> list[int]:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
        try:
            return [int(name) for name in os.listdir(descriptor) if name.isdigit()]
        finally:
            os.close(descriptor)

    def _read(self, path: str) -> str:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        try:
            return os.read(descriptor, 1 << 14).decode(errors="replace")
        finally:
            os.close(descriptor)


def watch(inner: bool, outer: int | None) -> Watch | None:
    """The best view; None without /proc. ``inner`` is of the programs' own namespace, ``outer`` the machine's."""
    try:
        if inner:
            return Watch(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY), True)
        if outer is None:
            return None
        view = Watch(outer, False)
        view.look()
        return view
    except (OSError, ValueError, IndexError):
        return None

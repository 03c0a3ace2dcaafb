"""``python supervise.py PID COMMAND...`` ends a command with its children once process PID is gone; stdlib alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

POLL_S = 0.25
GRACE_S = 10.0


def end(group: int, grace_s: float = GRACE_S) -> None:
    """End a process group: asked first, killed when it takes longer than ``grace_s`` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ends = time.monotonic() + grace_s
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            while time.monotonic() < ends:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
                os.killpg(group, 0)
                time.sleep(POLL_S / 5)


def main(parent: int, command: list[str]) -> int:
    child = subprocess.Popen(command, start_new_session=True)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: stopped.append(got))
    while child.poll() is None and not stopped and os.getppid() == parent:
        time.sleep(POLL_S)
    end(child.pid)
    return child.returncode or 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

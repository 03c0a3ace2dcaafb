"""A command in a process of its own, which holds the lock of its folder (:func:`locked`) also as an orphan; Ctrl-C
reaches it once, and it is waited for while it saves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import IO

from rlhf_core.config import RlhfError, UserError

Start = Callable[[Sequence[str], Path, "Path | None"], int]
"""(Words after `rlhf`, file for what it says, file for what it prints or None) -> exit code."""
INTERRUPTED = 130


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None, None, None]:
    """Hold the folder for this process and those it starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written: {error.strerror}", fix="choose another --out") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"another process is at work in '{folder}'",
                why="a recipe, or a stage of one that was killed",
                fix="wait for it, end it, or choose another --out",
            ) from error
        os.set_inheritable(handle, True)
        yield
    finally:
        os.close(handle)


def run_in_process(words: Sequence[str], log: Path, printed: Path | None) -> int:
    """Run a command and show what it says as it says it; on Ctrl-C it is interrupted too, and waited for."""
    interrupted = False
    with log.open("ab") as log_file, _output(printed, log_file) as stdout:
        process = start(words, stdout, subprocess.PIPE if printed else subprocess.STDOUT)
        stream = process.stderr if printed else process.stdout
        assert stream is not None
        with terminated_as_interrupt():
            while True:
                try:
                    for line in stream:
                        log_file.write(line)
                        log_file.flush()
                        sys.stderr.write(line.decode(errors="replace"))
                        sys.stderr.flush()
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGKILL if interrupted else signal.SIGINT)
                    interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return code


def start(words: Sequence[str], stdout: int | IO[bytes], stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Begin `rlhf WORDS` in a process group of its own, so that a terminal's Ctrl-C does not reach it twice."""
    try:
        with _interruptible():
            return subprocess.Popen(
                [sys.executable, "-m", "rlhf_core.cli.main", *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                process_group=0,
                close_fds=False,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise RlhfError(f"`rlhf {words[0]}` could not be started: {error}") from error


@contextlib.contextmanager
def terminated_as_interrupt() -> Generator[None, None, None]:
    """SIGTERM ends what was started as Ctrl-C does; without this it would be left running."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, to which no signal comes
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _interruptible() -> Generator[None, None, None]:
    """What begins here takes SIGINT, also where a script has begun this process with ``&`` and it is ignored."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _output(printed: Path | None, log: IO[bytes]) -> Generator[int | IO[bytes], None, None]:
    if printed is None:
        yield subprocess.PIPE
        return
    with printed.open("wb") as file:
        yield file

"""What a part of a request does in its own, confined process: the program, or the tests beside it."""

from __future__ import annotations

import functools
import gc
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from rlhf_plugin_code.inside import guest, harness

BEGUN, FAILED, HERE = b"1", b"x", b"n"
"""What a part tells before the program's first instruction, and when a command could not be run after all; with the
third comes its mount namespace."""


def work(role: str, begins: int) -> int:
    """In the confined child: descriptor 3 is the job; ``begins`` is closed before the program begins."""
    with open(3, "rb", closefd=True) as file:
        job = json.load(file)
    reopen_streams()
    gc.unfreeze()
    gc.enable()
    for name, text in job.get("files", {}).items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write(text)
    if role == "harness":
        return guest.finish(lambda: harness.judge(job, 4, harness.teller(5)))
    if role == "command":
        run_command(job["command"], begins)
    begin = functools.partial(tell_begun, begins)
    if role == "guest":
        return guest.finish(lambda: guest.answer_tests(job, 4, begin))
    begin()
    return guest.finish(lambda: guest.run_script(job))


def tell_begun(descriptor: int) -> None:
    """The program's first instruction comes next."""
    os.write(descriptor, BEGUN)
    os.close(descriptor)


def hand_over(descriptor: int, namespace: int) -> None:
    """Send this process's mount namespace along the line on which it tells that it begins."""
    line = socket.socket(fileno=descriptor)
    socket.send_fds(line, [HERE], [namespace])
    line.detach()


def run_command(command: Sequence[str], begins: int) -> NoReturn:
    """Become another program; where that cannot be, it was not the program's fault, and it never began."""
    os.set_inheritable(begins, False)
    os.write(begins, BEGUN)
    try:
        os.execvpe(command[0], list(command), dict(os.environ))
    except BaseException:
        os.write(begins, FAILED)
        raise


def reopen_streams() -> None:
    """Fresh buffers on 0, 1 and 2."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr

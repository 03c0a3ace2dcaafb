"""The filter of system calls: what a program that computes never needs, and what kernels have been broken with."""

from __future__ import annotations

import ctypes
import errno
import json
import struct
from pathlib import Path

from rlhf_plugin_code.inside import kernel

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
KILL, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
NAMESPACES = 0x7E020000 | 0x80
"""Every CLONE_NEW flag, the time namespace's too."""
TIOCSTI, TIOCLINUX, TIOCSCTTY = 0x5412, 0x541C, 0x540E
F_SETLEASE, F_NOTIFY = 1024, 1026
AF_UNIX = 1

DENIED: dict[str, dict[str, int]] = json.loads(Path(__file__).with_name("denied_calls.json").read_text())
SPECIAL = {
    "x86_64": {"clone": 56, "socketpair": 53, "ioctl": 16, "fcntl": 72},
    "aarch64": {"clone": 220, "socketpair": 199, "ioctl": 29, "fcntl": 25},
}
CLONE3 = 435

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: one line of classic BPF."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, (16, 24, 32)
"""Offsets in ``struct seccomp_data``; of an argument only the low half is looked at, as the kernel itself does here."""
DENY: Instruction = (RETURN, 0, 0, ERRNO | errno.EPERM)


def _without(number: int, *commands: int) -> list[Instruction]:
    """A system call whose second argument is none of these commands."""
    last = len(commands) - 1
    tests = [(EQUAL, last - i, int(i == last), command) for i, command in enumerate(commands)]
    return [(EQUAL, 0, last + 4, number), (LOAD, 0, 0, ARGUMENT[1]), *tests, DENY, (RETURN, 0, 0, ALLOW)]


def program(machine: str = kernel.MACHINE) -> bytes:
    """The filter in the kernel's form: denied calls fail with EPERM, ``clone3`` with ENOSYS (its flags lie in memory,
    so the C library falls back to ``clone``); another architecture's calls, x32 included, kill the process."""
    special = SPECIAL[machine]
    lines: list[Instruction] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    if machine == "x86_64":
        lines += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    lines += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    for number in sorted({*DENIED[machine].values(), *DENIED["every machine"].values()}):
        lines += [(EQUAL, 0, 1, number), DENY]
    lines += [
        (EQUAL, 0, 4, special["clone"]),
        (LOAD, 0, 0, ARGUMENT[0]),
        (ANY_BIT, 0, 1, NAMESPACES),
        DENY,
        (RETURN, 0, 0, ALLOW),
    ]
    lines += [
        (EQUAL, 0, 4, special["socketpair"]),
        (LOAD, 0, 0, ARGUMENT[0]),
        (EQUAL, 1, 0, AF_UNIX),
        DENY,
        (RETURN, 0, 0, ALLOW),
    ]
    lines += _without(special["ioctl"], TIOCSTI, TIOCLINUX, TIOCSCTTY)
    lines += _without(special["fcntl"], F_SETLEASE, F_NOTIFY)
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, (RETURN, 0, 0, ALLOW)])


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]


def install(lines: bytes) -> None:
    """Put the filter on this process and all that it will start; it cannot be taken off. Needs no_new_privs."""
    sealed = _Program(len(lines) // 8, lines)
    kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, ctypes.addressof(sealed))

"""Landlock: the kernel's own list of folders that a process may use, whatever is mounted and whichever user runs it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from rlhf_plugin_code.inside import kernel

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
VERSION = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1, 2, 4, 8, 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
ALL_FILE_RIGHTS = (1 << 16) - 1
TCP, ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3


def abi() -> int:
    """Landlock's version in this kernel, 0 if there is none. 4 knows TCP, 6 signals and abstract sockets."""
    try:
        return kernel.syscall(CREATE, None, 0, VERSION)
    except OSError:
        return 0


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def all_rights(version: int) -> int:
    return FILE_RIGHTS.get(version, ALL_FILE_RIGHTS)


def restrict(version: int, rights: Mapping[str, int]) -> None:
    """Allow this process and its children these folders' rights (path -> rights) only; needs no_new_privs."""
    handled = all_rights(version)
    attributes = _Ruleset(handled, TCP if version >= 4 else 0, ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = kernel.syscall(CREATE, attributes, size, 0)
    for path, allowed in rights.items():
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        kernel.syscall(ADD_RULE, ruleset, 1, _Beneath(allowed & handled, folder), 0)
        os.close(folder)
    kernel.syscall(RESTRICT, ruleset, 0)
    os.close(ruleset)

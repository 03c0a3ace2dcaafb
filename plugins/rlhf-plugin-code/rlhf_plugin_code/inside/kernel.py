"""Linux system calls that Python 3.11 has no function for, by number: neither compiler nor library is needed."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
SECCOMP_MODE_FILTER = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
CAPABILITIES = 64

# What differs between the two machines that are supported; system calls from 424 on have one number everywhere.
NUMBERS = {
    "x86_64": {"clone": 56, "unshare": 272, "setns": 308, "pivot_root": 155, "capset": 126},
    "aarch64": {"clone": 220, "unshare": 97, "setns": 268, "pivot_root": 41, "capset": 91},
}
MOUNT_SETATTR = 442
MACHINE = platform.machine()

# Not CDLL: the interpreter's lock is kept, so that a process made by `clone` wakes up holding it.
libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number: int, *args: int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Structure | None) -> int:
    converted = [
        ctypes.c_long(a) if isinstance(a, int) else ctypes.byref(a) if isinstance(a, ctypes.Structure) else a
        for a in args
    ]
    result = libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def numbered(name: str, *args: int | bytes | ctypes.Structure | None) -> int:
    """A system call whose number depends on the machine."""
    if MACHINE not in NUMBERS:
        raise OSError(38, f"no system call numbers for {MACHINE}")
    return syscall(NUMBERS[MACHINE][name], *args)


def prctl(option: int, *args: int) -> None:
    """``prctl(2)`` with up to four arguments."""
    padded = [*args, 0, 0, 0, 0][:4]
    if libc.prctl(option, *(ctypes.c_ulong(a) for a in padded)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if t is None else os.fsencode(t) for t in (source, target, kind)]
    if libc.mount(*texts, ctypes.c_ulong(flags), None if options is None else options.encode()) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or source} on {target}: {os.strerror(code)}")


def detach(target: str) -> None:
    """``umount2(target, MNT_DETACH)``."""
    if libc.umount2(os.fsencode(target), MNT_DETACH) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unmount {target}: {os.strerror(code)}")


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    ]


def make_read_only(path: str) -> None:
    """Make a mount and all below it read-only, without set-user-ID programs and devices (Linux 5.12)."""
    syscall(
        MOUNT_SETATTR,
        AT_FDCWD,
        os.fsencode(path),
        AT_RECURSIVE,
        _MountAttr(MS_RDONLY | MS_NOSUID, 0, 0, 0),
        ctypes.sizeof(_MountAttr),
    )


def clone(flags: int) -> int:
    """``fork`` with new namespaces; 0 in the child."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = numbered("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint32 * 6)]


def drop_bounding_set() -> None:
    """No program that is run from here on can gain a capability."""
    for capability in range(CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return


def drop_capabilities() -> None:
    """Give up every capability of this process, for good."""
    prctl(PR_CAP_AMBIENT, 4)
    numbered("capset", _CapHeader(0x20080522, 0), _CapData())


def hide_arguments() -> None:
    """Overwrite this process's command line as /proc shows it, here and in all that is forked from it."""
    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, b"sandbox", min(len(b"sandbox"), end - start))

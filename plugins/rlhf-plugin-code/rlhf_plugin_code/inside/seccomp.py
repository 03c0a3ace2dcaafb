"""The filter of system calls: what a program that computes never needs, and what kernels have been broken with."""

from __future__ import annotations

import ctypes
import errno
import struct

from rlhf_plugin_code.inside import kernel

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
KILL, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
NAMESPACES = 0x7E020000 | 0x80
"""Every CLONE_NEW flag, the time namespace's too."""
TIOCSTI, TIOCLINUX, TIOCSCTTY = 0x5412, 0x541C, 0x540E
F_SETLEASE, F_NOTIFY = 1024, 1026
AF_UNIX = 1

COMMON = {  # numbers that every machine shares
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "map_shadow_stack": 453,
    "statmount": 457,
    "listmount": 458,
}
DENIED = {
    "x86_64": {
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "bpf": 321,
        "userfaultfd": 323,
        "perf_event_open": 298,
        "kexec_load": 246,
        "kexec_file_load": 320,
        "init_module": 175,
        "delete_module": 176,
        "finit_module": 313,
        "unshare": 272,
        "setns": 308,
        "personality": 135,
        "socket": 41,
        "memfd_create": 319,
        "shmget": 29,
        "shmat": 30,
        "shmctl": 31,
        "semget": 64,
        "msgget": 68,
        "mq_open": 240,
        "quotactl": 179,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "settimeofday": 164,
        "clock_settime": 227,
        "adjtimex": 159,
        "clock_adjtime": 305,
        "acct": 163,
        "nfsservctl": 180,
        "syslog": 103,
        "iopl": 172,
        "ioperm": 173,
        "modify_ldt": 154,
        "uselib": 134,
        "sysfs": 139,
        "open_by_handle_at": 304,
        "name_to_handle_at": 303,
        "fanotify_init": 300,
        "vmsplice": 278,
        "move_pages": 279,
        "migrate_pages": 256,
        "mbind": 237,
        "set_mempolicy": 238,
        "vhangup": 153,
        "mknod": 133,
        "mknodat": 259,
        "io_setup": 206,
        "setsid": 112,
        "setpgid": 109,
        "inotify_init": 253,
        "inotify_init1": 294,
        "inotify_add_watch": 254,
        "flock": 73,
    },
    "aarch64": {
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "bpf": 280,
        "userfaultfd": 282,
        "perf_event_open": 241,
        "kexec_load": 104,
        "kexec_file_load": 294,
        "init_module": 105,
        "delete_module": 106,
        "finit_module": 273,
        "unshare": 97,
        "setns": 268,
        "personality": 92,
        "socket": 198,
        "memfd_create": 279,
        "shmget": 194,
        "shmat": 196,
        "shmctl": 195,
        "semget": 190,
        "msgget": 186,
        "mq_open": 180,
        "quotactl": 60,
        "swapon": 224,
        "swapoff": 225,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "clock_settime": 112,
        "adjtimex": 171,
        "clock_adjtime": 266,
        "acct": 89,
        "nfsservctl": 42,
        "syslog": 116,
        "open_by_handle_at": 265,
        "name_to_handle_at": 264,
        "fanotify_init": 262,
        "vmsplice": 75,
        "move_pages": 239,
        "migrate_pages": 238,
        "mbind": 235,
        "set_mempolicy": 237,
        "vhangup": 58,
        "mknodat": 33,
        "io_setup": 0,
        "setsid": 157,
        "setpgid": 154,
        "inotify_init1": 26,
        "inotify_add_watch": 27,
        "flock": 32,
    },
}
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
    for number in sorted({*DENIED[machine].values(), *COMMON.values()}):
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

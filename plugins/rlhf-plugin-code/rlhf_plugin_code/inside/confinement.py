"""The namespaces and the root that every program sees; ``confine`` runs in a program's process before the program."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_plugin_code.inside import kernel, landlock, seccomp

_SEEN: Mapping[str, Any] = json.loads(Path(__file__).with_name("root.json").read_text())
SYSTEM: Sequence[str] = _SEEN["system"]
"""Programs, libraries and headers. Not all of /usr: software is also unpacked there, with its settings."""
FILES: Sequence[str] = _SEEN["files"]
WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
LINKS: Mapping[str, str] = _SEEN["links"]
STAGE = "/tmp"
"""Where the new root is put together; what lies there is opened before and can still be bound."""
GUEST, NOBODY = 1000, 65534
SHARED = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
"""Unshared once. No program can use the network, so an empty one serves all of them."""
OWN = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
"""New for every program: its files, processes and queues end with it."""


def unshare_with_maps() -> None:
    """Leave the user's namespaces. Root's programs become ``nobody`` outside, a user's stay that user, powerless."""
    user, group = os.geteuid(), os.getegid()
    wide = [f"0 0 1\n{GUEST} {NOBODY} 1\n"] * 2 if user == 0 else []
    narrow = [f"{GUEST} {user} 1\n", f"{GUEST} {group} 1\n"]
    ready, done = os.pipe(), os.pipe()
    proc_self = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)  # right also where /proc counts processes otherwise
    helper = os.fork()
    if helper == 0:
        os.close(ready[1])
        os.read(ready[0], 1)
        mapped = _write_maps(proc_self, wide) or _write_maps(proc_self, narrow)
        os.write(done[1], b"1" if mapped else b"0")
        os._exit(0)
    try:
        kernel.numbered("unshare", SHARED)
        os.write(ready[1], b"x")
        mapped = os.read(done[0], 1) == b"1"
    finally:
        for end in (*ready, *done, proc_self):
            os.close(end)
        os.waitpid(helper, 0)
    if not mapped:
        raise PermissionError("the kernel refuses to map users into a new user namespace")


def _write_maps(folder: int, maps: Sequence[str]) -> bool:
    if not maps:
        return False
    narrow = len(maps[0].splitlines()) == 1
    files = {**({"setgroups": "deny"} if narrow else {}), "uid_map": maps[0], "gid_map": maps[1]}
    try:
        for name, text in files.items():
            descriptor = os.open(name, os.O_WRONLY, dir_fd=folder)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
    except OSError:
        return False
    return True


def build_root(readable: Sequence[str], hidden: Sequence[str]) -> bool:
    """Go to a root of read-only binds, ``hidden`` folders empty, as process 1; return whether it has a /proc."""
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    sources = _sources([*SYSTEM, *readable, *FILES])
    kernel.mount("tmpfs", STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for path, (descriptor, link) in sources.items():
        _put(path, descriptor, link)
    for path in (h for h in hidden if os.path.isdir(STAGE + h)):
        kernel.mount("tmpfs", STAGE + path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=4k")
    for name in ("/proc", "/tmp", "/dev"):
        os.makedirs(STAGE + name, exist_ok=True)
    for name, target in LINKS.items():
        os.symlink(target, STAGE + name)
    has_proc = mount_proc(STAGE + "/proc")
    os.chdir(STAGE)
    kernel.numbered("pivot_root", b".", b".")
    kernel.detach(".")
    os.chdir("/")
    kernel.make_read_only("/")
    return has_proc


def mount_proc(target: str, *options: str | None) -> bool:
    """A /proc of this process namespace; False where the machine forbids it (a container that masks its own)."""
    for option in options or (None,):
        try:
            kernel.mount("proc", target, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, option)
        except OSError:
            continue
        return True
    return False


def elsewhere() -> int:
    """Descriptor of another mount namespace for :func:`hide_mounts`; -1 where it cannot be had."""
    try:
        here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        kernel.numbered("unshare", kernel.CLONE_NEWNS)
        there = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        kernel.numbered("setns", here, kernel.CLONE_NEWNS)
        return there
    except OSError:
        return -1
    finally:
        os.close(here)


def hide_mounts(other: int, keep: Callable[[int], object]) -> None:
    """Join another mount namespace but stay in this root, so that /proc lists no mounts of the host. ``keep`` must keep
    a descriptor open that keeps this namespace alive."""
    here, root = os.open("/proc/self/ns/mnt", os.O_RDONLY), os.open("/", os.O_PATH | os.O_DIRECTORY)
    keep(here)
    kernel.numbered("setns", other, kernel.CLONE_NEWNS)
    os.fchdir(root)
    os.chroot(".")
    for descriptor in (here, root, other):
        os.close(descriptor)


def _sources(paths: Sequence[str]) -> dict[str, tuple[int, str | None]]:
    """Path -> open descriptor and, of a symbolic link, its target; paths below others are left out."""
    sources: dict[str, tuple[int, str | None]] = {}
    for path in sorted(set(paths)):
        if not os.path.lexists(path) or any(
            path.startswith(f"{p}/") for p, (_, link) in sources.items() if link is None
        ):
            continue
        link = os.readlink(path) if os.path.islink(path) else None
        sources[path] = (os.open(path, os.O_PATH | os.O_CLOEXEC), link)
    return sources


def _put(path: str, descriptor: int, link: str | None) -> None:
    target = STAGE + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if link is not None:
        os.symlink(link, target)
    else:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT, 0o644))
        kernel.mount(f"/proc/self/fd/{descriptor}", target, None, kernel.MS_BIND | kernel.MS_REC)
    os.close(descriptor)


def confine(
    limits: Mapping[str, Any],
    landlock_version: int,
    filter_lines: bytes,
    isolated: bool,
    hide: Callable[[], object] = bool,
) -> None:
    """Everything that a program's process gives up before the program begins; ``hide`` is called once all is mounted.
    ``landlock_version`` is 0, and ``filter_lines`` are empty, where the kernel has none."""
    if isolated:
        cover_tmp(f"mode=1777,size={limits['disk_mb']}m,nr_inodes=4096")
        mount_proc("/proc", "subset=pid", None)
        hide()
        os.chdir("/tmp")
    set_limits(limits)
    os.setsid()
    if not isolated:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        return
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(GUEST, GUEST, GUEST)
        os.setresuid(GUEST, GUEST, GUEST)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if landlock_version:
        everything = landlock.all_rights(landlock_version)
        devices = {
            d: landlock.WRITE_FILE | landlock.READ_FILE | landlock.TRUNCATE
            for d in WRITABLE_DEVICES
            if os.path.exists(d)
        }
        landlock.restrict(landlock_version, {"/": landlock.READ, "/tmp": everything, **devices})
    if filter_lines:
        seccomp.install(filter_lines)


def cover_tmp(options: str) -> None:
    """Mount a private /tmp; what is readable below it (an interpreter that was installed there) is still to be seen."""
    visible = {name: os.open(f"/tmp/{name}", os.O_PATH | os.O_CLOEXEC) for name in os.listdir("/tmp")}
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for name, descriptor in visible.items():
        os.mkdir(f"/tmp/{name}")
        kernel.mount(f"/proc/self/fd/{descriptor}", f"/tmp/{name}", None, kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)


def set_limits(limits: Mapping[str, Any]) -> None:
    """Resource limits, hard ones: they can be lowered, never raised."""
    values = {
        resource.RLIMIT_AS: limits["memory_mb"] << 20,
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_FSIZE: limits["file_kb"] << 10,
        resource.RLIMIT_NOFILE: limits["files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
    }
    if limits["isolated"]:
        values[resource.RLIMIT_NPROC] = limits["processes"]
    for kind, value in values.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

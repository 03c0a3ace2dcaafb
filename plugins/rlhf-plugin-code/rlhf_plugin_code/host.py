"""What this machine gives a sandbox: the interpreter's files, and how well programs can be isolated."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNSAFE = "none: programs run with this user's rights"


def executable() -> str:
    """The interpreter itself, not the one of a virtual environment, which programs cannot read."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def interpreter() -> list[str]:
    """What a program needs of this interpreter's prefix: its programs, shared libraries and standard library."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})]
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix)):
        paths += [f"{prefix}/bin", *sorted(map(str, Path(prefix, "lib").glob("*.so*")))]
    return [p for p in dict.fromkeys(paths) if os.path.exists(p)]


def installed_packages() -> list[str]:
    """Folders of installed packages: the base interpreter's, those of a virtual environment, and the system's."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    prefixes = (None, base)
    paths = [sysconfig.get_path(kind, vars=prefix) for kind in ("purelib", "platlib") for prefix in prefixes]
    paths += [str(p) for p in Path("/usr/lib").glob("python3*/*-packages")]
    return [*dict.fromkeys(paths)]


def describe(name: str, ready: Mapping[str, Any]) -> str:
    """How programs are isolated, in one line."""
    if name == UNSAFE:
        return UNSAFE
    landlock = f"landlock {ready['landlock']}" if ready["landlock"] else "no landlock in this kernel"
    proc = "" if ready["proc"] else ", no /proc (memory is watched per process only; who sleeps too long is an error)"
    mounts = ", programs can list mounts" if ready["mounts"] and ready["proc"] else ""
    return f"{name}, seccomp, {landlock}, resource limits{proc}{mounts}"

"""What a program must not learn of the machine, and not do to its files."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import rlhf_plugin_code
from rlhf_plugin_code.sandbox import Sandbox

TELL = """
import glob, os, sys
def tell(what, value): print(what, repr(value))
for name in ("executable", "prefix", "exec_prefix", "orig_argv", "argv", "path", "_base_executable", "_home"):
    tell(name, getattr(sys, name, None))
tell("files", [getattr(m, "__file__", None) for m in [*sys.modules.values()]])
tell("origins", [getattr(getattr(m, "__spec__", None), "origin", None) for m in [*sys.modules.values()]])
tell("searched", [*sys.path_importer_cache])
tell("site", getattr(sys.modules.get("site"), "__dict__", {}))
frame = sys._getframe()
while frame:
    tell("frame", (frame.f_code.co_filename, frame.f_locals))
    frame = frame.f_back
for path in glob.glob("/proc/[0-9]*/*") + glob.glob("/proc/self/task/*/*"):
    try: tell(path, open(path, errors="replace").read(1 << 16))
    except (OSError, ValueError): pass
for path in glob.glob("/proc/self/fd/*") + ["/proc/self/exe", "/proc/self/cwd", "/proc/self/root"]:
    try: tell(path, os.readlink(path))
    except OSError: pass
"""


def test_a_program_finds_no_path_of_the_host(sandbox: Sandbox) -> None:
    """But for the folders that it may read, such as the interpreter's own."""
    secrets = {str(Path(rlhf_plugin_code.__file__).parents[1]), str(Path.cwd()), os.path.realpath(__file__)}
    if sys.prefix != sys.base_prefix:
        secrets.add(sys.prefix)
    told = sandbox.script(TELL).stdout
    assert "executable" in told
    assert "/proc/1/maps" in told
    leaks = [line[:300] for line in told.splitlines() for secret in secrets if secret in line]
    assert leaks == []


def test_the_list_of_mounts_is_empty(sandbox: Sandbox) -> None:
    look = "import glob\nfor p in glob.glob('/proc/[0-9]*/mount*'):\n try: print(open(p).read())\n except OSError: pass"
    for ended in (
        sandbox.script(f"import os\nif os.fork(): os.wait()\n{look}"),
        sandbox.command(["python3", "main"], files={"main": look}),
    ):
        assert (ended.stdout.strip(), ended.stderr) == ("", "")


def test_a_program_learns_nothing_of_the_kernel_and_its_neighbours(sandbox: Sandbox) -> None:
    ended = sandbox.script("import os\nprint([n for n in os.listdir('/proc') if not n.isdigit()])")
    assert ended.stdout == "['self', 'thread-self']\n"


def test_files_of_the_host_are_neither_watched_nor_locked() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "data")
        path.write_text("x")
        code = f"""
            import ctypes, fcntl, os
            libc = ctypes.CDLL(None, use_errno=True)
            file, directory = open({str(path)!r}), os.open({folder!r}, os.O_RDONLY)
            def attempt(name, work):
                try: work()
                except PermissionError: return
                print("WON", name)
            def inotify(call):
                if call() < 0: raise OSError(ctypes.get_errno(), "inotify")
            attempt("inotify_init1", lambda: inotify(lambda: libc.inotify_init1(0)))
            attempt("inotify_init", lambda: inotify(libc.inotify_init))
            attempt("dnotify", lambda: fcntl.fcntl(directory, fcntl.F_NOTIFY, 0x1F))
            attempt("flock", lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
            attempt("lease", lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))
            print(fcntl.fcntl(file, fcntl.F_GETFL) >= 0)
        """
        with Sandbox(readable=[folder]) as box:
            ended = box.script(textwrap.dedent(code))
    assert ended.stdout == "True\n", ended


@pytest.mark.parametrize(
    "code",
    [
        "import os, subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(42)'], stdout=-1).stdout)",
        "import sqlite3\nc = sqlite3.connect('data.db')\nc.execute('create table t (x)')\nc.commit()\nprint(b'42\\n')",
        "import multiprocessing\nprint(b'42\\n' if multiprocessing.cpu_count() else 0)",
    ],
)
def test_honest_programs_still_run(sandbox: Sandbox, code: str) -> None:
    assert sandbox.script(code).stdout == "b'42\\n'\n"

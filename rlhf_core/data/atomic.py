"""Files and folders that are either whole or absent: write aside, fsync, rename. Of two processes that write the same
place, the last rename wins; what a killed one left aside, the next that writes into the folder removes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlhf_core.data.jsonl import json_values
from rlhf_core.data.manifest import write_manifests
from rlhf_core.types.errors import disk_error

TEMPORARY = ".partial-"


def _aside(path: Path) -> Path:
    """Where this process writes what is to appear at ``path``; leftovers of dead processes there are removed."""
    here = f"{TEMPORARY}{_host()}-"
    aside = path.with_name(f"{here}{os.getpid()}-{path.name}")
    _remove(aside)
    with contextlib.suppress(OSError):  # no such folder, or one that cannot be read
        for name in os.listdir(path.parent):
            pid = name.removeprefix(here).split("-")[0] if name.startswith(here) else ""
            if pid.isdigit() and not _alive(int(pid)):
                _remove(path.with_name(name))
    return aside


def _host() -> str:
    """This host and its process namespace: only there does a process id say which process it is."""
    with contextlib.suppress(OSError):
        return f"{platform.node()}.{Path('/proc/self/ns/pid').stat().st_ino}"
    return platform.node()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def fsync_folder(path: Path) -> None:
    """Make a folder's entries durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace a file's content atomically.

    Raises:
        RunDirError: the disk is full or the place not writable; the old content stays.
    """
    aside = _aside(path)
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        fsync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order."""
    write_text(path, json.dumps(json_values(value), indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def whole_folder(path: Path) -> Generator[Path, None, None]:
    """Yield a folder to fill; it appears at ``path``, with its manifest, only if the block succeeds.

    Raises:
        RunDirError: the disk is full; nothing is left behind and what was there stays.
    """
    aside = _aside(path)
    try:
        aside.mkdir(parents=True)
        yield aside
        write_manifests(aside)
        for file in aside.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        _swap(aside, path)
    except (OSError, SafetensorError) as error:
        raise disk_error(path, error) from error
    except Exception as error:
        if "os error " not in str(error):  # a tokenizer's writer raises a bare Exception
            raise
        raise disk_error(path, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _swap(aside: Path, path: Path) -> None:
    old = aside.with_name(f"{aside.name}-old")
    while True:
        _remove(old)
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, old)
        try:
            os.replace(aside, path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another process put its own there just now
    _remove(old)
    fsync_folder(path.parent)

"""What every file of a folder was when it was written: ``manifest.json``, checked before the folder is read. It lists
the folder's files and the manifests of the folders below, so that a part (a checkpoint's ``model``) is checked alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlhf_core.types.errors import ModelError, error_text

MANIFEST = "manifest.json"
ALGORITHM = "sha256"
UNREAD = re.compile(r"\..*|.+\.md|(LICENSE|NOTICE)(\..+)?|.+\.(png|jpg|svg)")
"""Names of files and folders that no loader reads, so that they may be added to a folder; nothing else may."""
THREADS = 4
"""Files that are hashed at once; hashing holds no lock of the interpreter."""


def write_manifests(folder: Path) -> None:
    """Write the manifest of a folder that nobody reads yet, and of each folder below it."""
    for path, below, names in os.walk(folder, topdown=False):
        here = Path(path)
        files = sorted(here / name for name in names if name != MANIFEST)
        files += sorted(here / name / MANIFEST for name in below)
        rows = {
            file.relative_to(here).as_posix(): {"bytes": file.stat().st_size, "digest": digest}
            for file, digest in zip(files, digests(files))
        }
        text = json.dumps({"algorithm": ALGORITHM, "files": rows}, indent=1)
        (here / MANIFEST).write_text(text + "\n", encoding="utf-8")


def find_damage(folder: Path) -> list[str] | None:
    """What differs from the manifest, a sentence for each file, sizes first; None if there is no manifest."""
    if not (folder / MANIFEST).is_file():
        return None
    try:
        rows = list(_listed(folder))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{MANIFEST} cannot be read ({error_text(error)})"]
    listed = {file for file, _, _ in rows}
    changed = [(file, "was added") for file in files_read(folder) if file not in listed]
    changed += [(file, why) for file, size, _ in rows if (why := _other_size(file, size))]
    if not changed:
        now = digests([file for file, _, _ in rows])
        changed = [(row[0], "is not what was written") for row, digest in zip(rows, now) if row[2] != digest]
    return [f"{file.relative_to(folder)} {why}" for file, why in changed]


def _other_size(file: Path, size: int) -> str:
    """How a file's size differs from what was written; "" if it does not."""
    if not file.is_file():
        return "is not there"
    return "" if file.stat().st_size == size else f"has {file.stat().st_size} bytes of {size}"


def verify_files(folder: Path | str) -> None:
    """Refuse a folder whose files are not those that its manifest lists; one without a manifest is taken as it is.

    Raises:
        ModelError: names the file.
    """
    damage = find_damage(Path(folder).expanduser())
    if damage:
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        raise ModelError(
            f"'{folder}' is damaged: {damage[0]}{more}",
            why=f"{MANIFEST}, written with these files, says otherwise",
            fix=f"copy or train it again; if you changed the file on purpose, remove {Path(folder) / MANIFEST}",
        )


def truncation(file: Path) -> str | None:
    """How a safetensors file contradicts its own header (a download that was cut short); None if it does not."""
    size = file.stat().st_size
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            header: dict[str, Any] = json.loads(handle.read(length)) if length <= size - 8 else {}
    except ValueError:
        return "its header cannot be read"
    if length > size - 8:
        return f"it ends within its header, after {size} bytes"
    ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"it has {size} bytes, its header describes {expected}"


def files_read(folder: Path) -> list[Path]:
    """The files that loaders may read in a folder, at any depth; manifests are left out."""
    files: list[Path] = []
    for path, below, names in os.walk(folder, followlinks=True):
        below[:] = sorted(name for name in below if not UNREAD.fullmatch(name))
        files += sorted(Path(path, name) for name in names if name != MANIFEST and not UNREAD.fullmatch(name))
    return files


def _listed(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """(File, bytes, digest) of everything in the folder, the manifests below it included."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest["algorithm"] != ALGORITHM:
        raise ValueError(f"unknown algorithm {manifest['algorithm']!r}")
    for name, row in manifest["files"].items():
        file = folder / name
        yield file, int(row["bytes"]), str(row["digest"])
        if file.name == MANIFEST and file.is_file():
            yield from _listed(file.parent)


def digests(files: Sequence[Path]) -> list[str]:
    """Of each file, in hexadecimal; several are read at once, and none twice while it stays as it is."""
    facts = [file.stat() for file in files]
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(_digest, files, *zip(*((f.st_size, f.st_ctime_ns, f.st_ino) for f in facts))))


@functools.lru_cache(maxsize=4096)
def _digest(file: Path, size: int, changed_ns: int, inode: int) -> str:
    """Remembered while the file stays as it is: tokenizer and model of one folder are loaded one after the other."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, ALGORITHM).hexdigest()

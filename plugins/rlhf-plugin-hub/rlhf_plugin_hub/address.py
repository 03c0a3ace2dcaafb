"""A folder behind fsspec: a bucket, a server, or a folder of this machine."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, UserError

PROBE, PART = ".rlhf-can-write", ".part"


class Address:
    """Paths are relative to the address, with ``/``.

    Every method raises:
        UserError: the file system fails.
    """

    def __init__(self, name: str, files: Any, root: str) -> None:
        self.name, self.files, self.root = name, files, root

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Address:
        """Open an address.

        Raises:
            ConfigError: there is no such protocol, or its library is not installed.
        """
        import fsspec

        try:
            files, root = fsspec.core.url_to_fs(name, **options)
        except Exception as error:  # of as many kinds as there are file systems
            raise ConfigError(
                f"the address '{name}' cannot be opened",
                why=f"{type(error).__name__}: {error}",
                fix="an address of fsspec, such as s3://bucket/run (pip install s3fs), or a folder",
            ) from error
        return cls(name, files, root)

    def path(self, relative: str) -> str:
        return posixpath.join(self.root, relative) if relative else self.root

    def has(self, relative: str) -> bool:
        with self._named("look at"):
            self.files.invalidate_cache()
            return bool(self.files.exists(self.path(relative)))

    def is_in(self, folder: Path) -> bool:
        """Whether it is a folder of this machine, and that one or below it."""
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self.files, LocalFileSystem) and Path(self.root).resolve().is_relative_to(folder.resolve())

    def try_writing(self) -> None:
        with self._named("write to"):
            probe = self.path(f"{PROBE}-{uuid.uuid4()}")  # of one process: others may try at the same time
            self.files.makedirs(self.root, exist_ok=True)
            self.files.pipe_file(probe, b"ok")
            self.files.rm_file(probe)

    def put(self, file: Path, relative: str, *, renamed: bool = False) -> None:
        """Copy a file there; its size is compared afterwards. ``renamed``: an earlier one stays until it is whole."""
        with self._named("write to"):
            target, least = self.path(relative), file.stat().st_size  # it may grow meanwhile
            part = f"{target}{PART}" if renamed else target
            self.files.makedirs(posixpath.dirname(target), exist_ok=True)
            self.files.put_file(str(file), part)
            self.files.invalidate_cache()
            if (size := self.files.info(part)["size"]) < least:
                raise OSError(f"{relative} has {size} bytes there, and {least} here")
            if renamed:
                self.files.mv(part, target)

    def write(self, relative: str, data: bytes) -> None:
        with self._named("write to"):
            self.files.makedirs(self.root, exist_ok=True)
            self.files.pipe_file(self.path(relative), data)

    def get(self, relative: str, file: Path) -> None:
        with self._named("read"):
            file.parent.mkdir(parents=True, exist_ok=True)
            self.files.get_file(self.path(relative), str(file))

    def read(self, relative: str) -> bytes:
        with self._named("read"):
            return bytes(self.files.cat_file(self.path(relative)))

    def remove(self, relative: str) -> None:
        """Remove a folder and what is in it."""
        with self._named("delete from"):
            self.files.rm(self.path(relative), recursive=True)

    def all_files(self) -> list[str]:
        """Every file, relative."""
        with self._named("look at"):
            self.files.invalidate_cache()
            return sorted(posixpath.relpath(f, self.root) for f in self.files.find(self.root))

    @contextmanager
    def _named(self, what: str) -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:
            raise UserError(
                f"cannot {what} {self.name}",
                why=f"{type(error).__name__}: {error}",
                fix="check the address, its credentials and its room",
            ) from error

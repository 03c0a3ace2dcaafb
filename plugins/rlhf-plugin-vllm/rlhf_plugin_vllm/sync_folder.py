"""Where weights are written for servers, agreed on by all ranks."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.config import ConfigError

TOKEN = "token"
"""File that shows a server, or another rank, that the folder is this run's."""
PREFIX = "rlhf-vllm-"


class SyncFolder(NamedTuple):
    folder: Path
    own: Path
    """Of this rank alone: what its servers start with, and their output."""
    token: str
    """Of this run, on all ranks: labels and folders of other runs on the same servers differ."""
    rank: int = 0
    shared: bool = False
    """Rank 0 writes the versions for the servers of all ranks."""

    @property
    def writes(self) -> bool:
        return not self.shared or self.rank == 0

    def remove(self) -> None:
        for folder in {self.own, self.folder} if self.writes else {self.own}:
            shutil.rmtree(folder, ignore_errors=True)


def make_sync_folder(sync_dir: Path | None, strategy: Any = None, *, shared: bool = False) -> SyncFolder:
    """The folders of this rank; all ranks call it."""
    if strategy is None or strategy.world_size == 1:
        return _made(sync_dir, secrets.token_hex(4), 0, shared)
    rank = int(strategy.rank)
    if not shared:
        return _made(sync_dir, strategy.gather_objects(secrets.token_hex(4))[0], rank, shared)
    first, problem = None, ""
    try:
        first = _made(sync_dir, secrets.token_hex(4), 0, shared) if rank == 0 else None
    except ConfigError as error:
        problem = error.why
    first, problem = strategy.gather_objects((first, problem))[0]
    if first is None:
        raise _not_made(sync_dir, problem)
    sees = rank == 0 or _holds(first.folder, first.token)
    blind = [n for n, seen in enumerate(strategy.gather_objects(sees)) if not seen]
    if blind:
        first.remove() if rank == 0 else None
        raise ConfigError(
            f"rank {blind[0]} does not see '{first.folder}', where rank 0 writes the weights",
            why="the ranks run on several machines, or have temporary folders of their own",
            fix="--set rollout.sync_dir=FOLDER, a folder that all ranks and servers see under the same path",
        )
    return first if rank == 0 else first._replace(rank=rank, own=Path(tempfile.mkdtemp(prefix=PREFIX)))


def _made(sync_dir: Path | None, token: str, rank: int, shared: bool) -> SyncFolder:
    name = f"rlhf-{token}-{rank}" if rank else f"rlhf-{token}"
    folder = Path(tempfile.mkdtemp(prefix=PREFIX)) if sync_dir is None else sync_dir / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TOKEN).write_text(token)
    except OSError as error:
        raise _not_made(sync_dir, str(error)) from error
    return SyncFolder(folder, folder, token, rank, shared)


def _not_made(sync_dir: Path | None, why: str) -> ConfigError:
    return ConfigError(
        f"cannot create a folder for the weights in '{sync_dir or tempfile.gettempdir()}'",
        why=why,
        fix="--set rollout.sync_dir=FOLDER, one that can be written to",
    )


def _holds(folder: Path, token: str) -> bool:
    file = folder / TOKEN
    return file.is_file() and file.read_text() == token

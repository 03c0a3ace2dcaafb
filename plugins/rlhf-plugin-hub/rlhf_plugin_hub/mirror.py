"""The mirror of a run, and the way back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rlhf_core.config import BuildContext, ConfigError, UserError
from rlhf_core.hooks import RunEnd, StopRun, hookimpl
from rlhf_plugin_hub.address import PART, Address
from rlhf_plugin_hub.mirror_config import MirrorConfig

CHECKPOINTS, FINAL, MANIFEST, OWNER = "checkpoints", "final", "manifest.json", "mirror.txt"
ENDED = ("summary.json", "failure.json")
"""Files that a run deletes when it goes on."""


class Mirror:
    """A checkpoint's manifest is copied last: one without is not whole."""

    def __init__(self, config: MirrorConfig, ctx: BuildContext) -> None:
        self.address, self.required = Address.of(config.to, config.options), config.required
        self.run_dir, self.session = ctx.run_dir, ctx.session
        if self.session is not None and self.session.main:
            assert self.run_dir is not None
            claim(self.run_dir, self.address)
            self.session.hooks.manager.register(self, name=f"tracker 'mirror' {id(self)}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics are in the run's folder."""

    @hookimpl
    def rlhf_checkpoint_saved(self, event: Any) -> None:
        """Copy it, and the logs that it goes on from."""
        self.copy()

    @hookimpl
    def rlhf_run_end(self, event: RunEnd) -> None:
        """Copy the final model and the last rows."""
        self.copy(last=True)

    def copy(self, *, last: bool = False) -> None:
        """Bring the address up to date: what is there already of a checkpoint or the final model is not sent again.

        Raises:
            UserError: a copy failed.
            StopRun: a copy failed, and ``required`` is true; not after the last step, where nobody hears it.
        """
        assert self.run_dir is not None
        try:
            copy_run(self.run_dir, self.address)
        except UserError as error:
            if self.required and not last:
                raise StopRun(f"{error.what}: {error.why}") from error
            raise

    def close(self) -> None:
        """Hear no more."""
        if self.session is not None and self.session.hooks.manager.is_registered(self):
            self.session.hooks.manager.unregister(self)


def claim(run_dir: Path, address: Address) -> None:
    """Refuse an address that another run was copied to, and take it from whoever copies there now.

    ``mirror.txt`` is a line for the run, the same wherever it goes on, and one for this process; both are random.
    """
    if address.is_in(run_dir):
        raise ConfigError(f"trackers: {address.name} is in the run's own folder", fix="another address")
    own = (run_dir / OWNER).read_text().split() if (run_dir / OWNER).is_file() else []
    run = own[0] if own else str(uuid.uuid4())
    held = any(address.has(name) for name in ("plan.json", CHECKPOINTS, FINAL))
    if held and (not address.has(OWNER) or address.read(OWNER).split()[:1] != [run.encode()]):
        raise ConfigError(
            f"trackers: there is another run at {address.name}",
            fix=f"another address, or go on with that run: rlhf fetch {address.name} FOLDER",
        )
    (run_dir / OWNER).write_text(f"{run}\n{uuid.uuid4()}\n")
    address.write(OWNER, (run_dir / OWNER).read_bytes())


def copy_run(run_dir: Path, address: Address) -> None:
    """Logs first, then each folder that has a manifest, which comes last; then delete what the run deleted.

    Raises:
        UserError: a copy failed, or the address is another process's now.
    """
    there = set(address.all_files())
    if OWNER in there and address.read(OWNER) != (run_dir / OWNER).read_bytes():
        raise UserError(
            f"another run or process copies to {address.name} now", fix="end one of them, or give it another address"
        )
    whole = sorted(file.parent for file in run_dir.rglob(MANIFEST) if not _hidden(file.relative_to(run_dir)))
    whole = [folder for folder in whole if not any(other in folder.parents for other in whole)]
    for file in sorted(run_dir.rglob("*")):
        inside = any(folder in file.parents for folder in (*whole, run_dir / CHECKPOINTS))
        if file.is_file() and not inside and not _hidden(file.relative_to(run_dir)):
            address.put(file, file.relative_to(run_dir).as_posix(), renamed=True)
    for folder in whole:
        name = folder.relative_to(run_dir).as_posix()
        if f"{name}/{MANIFEST}" in there:
            if address.read(f"{name}/{MANIFEST}") == (folder / MANIFEST).read_bytes():
                continue
            _remove(address, name, there)
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / MANIFEST]
        for file in (*files, folder / MANIFEST):
            address.put(file, file.relative_to(run_dir).as_posix())
    for name in sorted({"/".join(PurePosixPath(f).parts[:2]) for f in there if f.startswith(f"{CHECKPOINTS}/")}):
        if not (run_dir / name).is_dir():
            _remove(address, name, there)
    for name in there.intersection(ENDED):
        if not (run_dir / name).exists():
            address.remove(name)


def fetch_run(address: Address, folder: Path) -> str:
    """Bring back the logs, the newest whole checkpoint and other whole folders; the checkpoint's name.

    Raises:
        UserError: there is no run with a whole checkpoint, or a file would be written elsewhere.
    """
    files = [name for name in address.all_files() if not name.endswith(PART)]
    if outside := next((name for name in files if ".." in PurePosixPath(name).parts), None):
        raise UserError(f"a file of {address.name} would be written outside of the folder: {outside}")
    if f"{FINAL}/{MANIFEST}" not in files:  # cut off
        files = [name for name in files if not name.startswith(f"{FINAL}/")]
    saved = [PurePosixPath(f).parts[1] for f in files if PurePosixPath(f).match(f"{CHECKPOINTS}/*/{MANIFEST}")]
    saved.sort(key=lambda name: (len(name), name))  # six digits, and more from a million steps on
    if "plan.json" not in files or not saved:
        raise UserError(
            f"there is no run to go on with at {address.name}",
            why="it has no plan.json" if "plan.json" not in files else "no checkpoint is whole",
            fix="name the address that the run's tracker 'mirror' wrote to",
        )
    for name in files:
        if not name.startswith(f"{CHECKPOINTS}/") or name.startswith(f"{CHECKPOINTS}/{saved[-1]}/"):
            address.get(name, folder / name)
    return saved[-1]


def _remove(address: Address, name: str, there: set[str]) -> None:
    """Remove a folder; its manifest goes first, so that what is left of it is not taken for whole."""
    if f"{name}/{MANIFEST}" in there:
        address.remove(f"{name}/{MANIFEST}")
    address.remove(name)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)

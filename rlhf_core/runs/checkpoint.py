"""Checkpoints: atomic, pickle-free, complete enough to resume bit for bit."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.atomic import whole_folder
from rlhf_core.data.manifest import MANIFEST, find_damage
from rlhf_core.types.errors import RunDirError
from rlhf_core.types.tree import load_tree

log = logging.getLogger("rlhf.checkpoint")
_NAME = re.compile(r"step-(\d{6,})$")


class CheckpointStore:
    """The ``checkpoints`` folder of a run.

    Args:
        folder: where ``step-000010`` folders live.
        keep: how many of the newest to keep.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        matches = [_NAME.match(p.name) for p in self.folder.glob("step-*")]
        return sorted(int(m.group(1)) for m in matches if m)

    def path(self, step: int) -> Path:
        """Folder of one step's checkpoint."""
        return self.folder / f"step-{step:06d}"

    @contextlib.contextmanager
    def writing(self, step: int) -> Iterator[Path]:
        """Yield a folder to fill: ``model`` in Hugging Face form, the tree ``state``, and with a sharded strategy
        ``shard-RANK`` of each rank and ``sharded`` of all. It becomes the step's checkpoint when it is whole.

        The oldest ones go.
        """
        with whole_folder(self.path(step)) as folder:
            yield folder
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self.path(old), ignore_errors=True)

    def newest_whole(self) -> int | None:
        """Step of the newest checkpoint whose files are what was written; None if there is no checkpoint.

        Damaged ones that are newer are set aside, for the run is to write these steps again.

        Raises:
            RunDirError: every checkpoint is damaged; says how.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            damage = _damage(self.path(step))
            if not damage:
                self._set_aside(damaged, step)
                return step
            damaged[step] = damage[0] + (f", and {len(damage) - 1} more" if len(damage) > 1 else "")
        if damaged:
            raise RunDirError(
                f"every checkpoint in '{self.folder}' is damaged",
                why="; ".join(f"step {step}: {damage}" for step, damage in damaged.items()),
                fix="copy the run again if this is a copy, else start a new run",
            )
        return None

    def _set_aside(self, damaged: Mapping[int, str], chosen: int) -> None:
        for step, damage in damaged.items():
            place = self.path(step).with_suffix(".damaged")
            shutil.rmtree(place, ignore_errors=True)
            self.path(step).rename(place)
            log.warning(
                "the checkpoint of step %d is damaged (%s): going on from step %d; it is kept as '%s'",
                step,
                damage,
                chosen,
                place,
            )

    def read(self, step: int, rank: int = 0) -> tuple[Path, dict[str, Any]]:
        """Folder and state of a checkpoint, this rank's shard included.

        Raises:
            RunDirError: it cannot be read.
        """
        path = self.path(step)
        try:
            state = load_tree(path, "state")
            written = len(state.get("ranks", ())) or rank + 1
            shard = f"shard-{rank if rank < written else 0}"  # a rank that was not there takes what all have alike
            return path, {**state, **(load_tree(path, shard) if (path / f"{shard}.json").is_file() else {})}
        except Exception as error:
            raise RunDirError(
                f"checkpoint '{path}' cannot be read: {error}", fix="remove that folder to resume from the one before"
            ) from error


def _damage(path: Path) -> list[str]:
    """What is wrong with a checkpoint; its manifest is written with it."""
    damage = find_damage(path)
    return [f"{MANIFEST} is missing"] if damage is None else damage

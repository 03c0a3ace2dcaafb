"""Copies sampled sounds into the run's ``audio/``: of every step the best, the worst and some others."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.api import hookimpl

if TYPE_CHECKING:
    from rlhf_core.api import RewardsReady, RunStart

PER_STEP = 8
MOST_FILES, MOST_BYTES = 400, 40_000_000
log = logging.getLogger("rlhf.tts")


class KeepSounds:
    """Acts only in runs whose rollouts hold sounds."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @hookimpl
    def rlhf_run_start(self, event: RunStart) -> None:
        """Remember where the run lies."""
        self._folder = event.run_dir / "audio"

    @hookimpl
    def rlhf_rewards_ready(self, event: RewardsReady) -> None:
        """Copy the sounds of this step's best, worst and first completions."""
        if self._folder is None or not any(r.media for r in event.rollouts):
            return
        scored = [(s.value, i) for i, s in enumerate(event.scores) if s.ok and s.value is not None]
        ends = [i for _, i in (min(scored), max(scored))] if scored else []
        chosen = list(dict.fromkeys([*ends, *range(len(event.rollouts))]))[:PER_STEP]
        keep([m for i in chosen for m in event.rollouts[i].media], self._folder)


def keep(media: Iterable[Any], folder: Path) -> int:
    """Copy sounds into a run's folder until it holds :data:`MOST_FILES` or :data:`MOST_BYTES`; returns how many."""
    held = [f.stat().st_size for f in folder.glob("*.*")] if folder.is_dir() else []
    count, total, copied = len(held), sum(held), 0
    for one in _sounds(media):
        target = folder / one.name
        if target.exists() or not one.is_file():
            continue
        size = one.stat().st_size
        if count >= MOST_FILES or total + size > MOST_BYTES:
            log.info("%s is full: no further sounds are kept", folder)
            break
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(one, target)
        count, total, copied = count + 1, total + size, copied + 1
    return copied


def _sounds(media: Iterable[Any]) -> Sequence[Path]:
    return [Path(m.path) for m in media if m.kind == "audio" and m.path]


sounds = KeepSounds()

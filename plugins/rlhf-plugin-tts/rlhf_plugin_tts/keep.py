"""Copies sounds into the run's ``audio/``: some pairs of every step, all of the first and the latest evaluation. When
there are too many bytes or files, every second step goes. ``audio/kept.jsonl`` says which step a file is of."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlhf_core.hooks import RunStart, StepMetrics, StepRollouts, hookimpl
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_report.stored import lines_of

PER_STEP = 8
MOST_FILES, MOST_BYTES = 400, 40_000_000
INDEX = "kept.jsonl"
log = logging.getLogger("rlhf.tts")


class KeepSounds:
    """Acts only in runs whose rollouts hold sounds."""

    def __init__(self) -> None:
        self._run = Path()
        self._every = 1

    @hookimpl
    def rlhf_run_start(self, event: RunStart) -> None:
        """Remember where the run lies, and how far it was thinned."""
        self._run = event.run_dir
        steps = sorted({row["step"] for row in lines_of(self._run / "audio" / INDEX)[0] if not row["heldout"]})
        self._every = min((b - a for a, b in pairwise(steps)), default=1)

    @hookimpl
    def rlhf_rewards_ready(self, event: StepRollouts) -> None:
        if (event.step - 1) % self._every or not any(r.media for r in event.rollouts):
            return
        chosen = [event.rollouts[i] for i in choose(event.rollouts, event.scores)]
        self._keep([m for rollout in chosen for m in rollout.media], event.step, heldout=False)

    @hookimpl
    def rlhf_eval_end(self, event: StepMetrics) -> None:
        """Copy the sounds of the evaluation's completions in ``samples.jsonl``."""
        file = self._run / "samples.jsonl"
        rows = map(json.loads, file.read_text().splitlines()) if file.is_file() else ()
        media = [one for row in rows if row["step"] == event.step for one in row.get("media", ())]
        if media:
            self._keep(media, event.step, heldout=True)

    def _keep(self, media: Sequence[Any], step: int, *, heldout: bool) -> None:
        folder = self._run / "audio"
        names = keep(media, folder)
        if names:
            row = {"step": step, "heldout": heldout, "files": names}
            with (folder / INDEX).open("a") as index:
                index.write(json.dumps(row) + "\n")
        while too_much(folder) and self._every < step:
            self._every *= 2
            thin(folder, self._every)


def choose(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> list[int]:
    """The best and the worst of all, then of one prompt after the other, then others: at most :data:`PER_STEP`."""
    scored = [(s.value, i) for i, s in enumerate(scores) if s.ok and s.value is not None]
    by_prompt: dict[str, list[tuple[float, int]]] = {}
    for value, i in scored:
        by_prompt.setdefault(rollouts[i].prompt_id, []).append((value, i))
    ends = [i for group in (scored, *by_prompt.values()) if group for _, i in (max(group), min(group))]
    return list(dict.fromkeys([*ends, *range(len(rollouts))]))[:PER_STEP]


def keep(media: Iterable[Any], folder: Path) -> list[str]:
    """Copy sounds into a run's folder; returns the names of those that it holds now."""
    names: list[str] = []
    for one in media:
        kind, path = (one["kind"], one["path"]) if isinstance(one, Mapping) else (one.kind, one.path)
        source = Path(path)
        target = folder / source.name
        if kind != "audio" or not path or not (target.is_file() or source.is_file()):
            continue
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        names.append(source.name)
    return names


def too_much(folder: Path) -> bool:
    """Whether the folder holds more than :data:`MOST_FILES` or :data:`MOST_BYTES`."""
    sizes = [file.stat().st_size for file in folder.glob("*.*") if file.name != INDEX]
    return len(sizes) > MOST_FILES or sum(sizes) > MOST_BYTES


def thin(folder: Path, every: int) -> None:
    """Remove the sounds of steps other than 1, 1 + every, ..., and of evaluations between the first and the latest."""
    rows = lines_of(folder / INDEX)[0]
    heldout = [row["step"] for row in rows if row["heldout"]]
    ends = {min(heldout), max(heldout)} if heldout else set()
    stay = [row for row in rows if (row["step"] in ends if row["heldout"] else (row["step"] - 1) % every == 0)]
    names = {name for row in stay for name in row["files"]}
    for name in {name for row in rows for name in row["files"]} - names:
        (folder / name).unlink(missing_ok=True)
    (folder / INDEX).write_text("".join(json.dumps(row) + "\n" for row in stay))
    log.info("%s was full: from now on the sounds of one step in %d are kept", folder, every)


sounds = KeepSounds()

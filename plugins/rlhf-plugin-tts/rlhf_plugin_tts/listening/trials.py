"""What is compared: pairs of a run, the last sounds of two runs, or rows of a file of pairs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError, read_rows
from rlhf_plugin_report.listening import pairs_of
from rlhf_plugin_report.media import media_file
from rlhf_plugin_report.stored import lines_of, open_run
from rlhf_plugin_tts.rows import digest, read_audio_pairs


@dataclass(frozen=True)
class Clip:
    file: Path
    label: str
    """What it is; shown when all is answered."""
    text: str = ""


@dataclass(frozen=True)
class Trial:
    kind: str
    prompt: Any
    """A text or messages."""
    sides: tuple[Clip, Clip]

    @property
    def id(self) -> str:
        """The same for the same two sounds of the same prompt and the same kind, wherever their files lie."""
        names = [self.kind, json.dumps(self.prompt, sort_keys=True), *(digest(side.file) for side in self.sides)]
        return hashlib.sha256("\n".join(names).encode("utf-8", "replace")).hexdigest()[:16]

    def said(self, role: str) -> str:
        if isinstance(self.prompt, str):
            return self.prompt if role == "user" else ""
        return " ".join(str(turn.get("content", "")) for turn in self.prompt if turn.get("role") == role)


def trials_of_runs(names: Sequence[str]) -> list[Trial]:
    """Pairs of each run; of two runs, their last held-out sounds of one prompt."""
    runs = [open_run(name).path for name in names]
    trials = _of_two(runs, names) if len(runs) == 2 else [trial for run in runs for trial in _of_run(run)]
    return _usable(trials, ", ".join(names))


def _of_run(run: Path) -> list[Trial]:
    trials = []
    for pair in pairs_of(run, lines_of(run / "trace.jsonl")[0], lines_of(run / "samples.jsonl")[0]):
        files = [media_file(run, str(side.media["path"])) for side in pair.sides]
        first, second = (Clip(Path(str(f)), side.label, side.text) for f, side in zip(files, pair.sides))
        trials.append(Trial(pair.kind, list(pair.messages) or pair.prompt, (first, second)))
    return trials


def _of_two(runs: Sequence[Path], names: Sequence[str]) -> list[Trial]:
    """The latest held-out sounds of the prompts that both runs have."""
    labels = [run.resolve().name for run in runs]
    labels = labels if labels[0] != labels[1] else list(names)
    latest = [
        {(str(row.get("prompt_id")), str(row.get("prompt"))): row for row in lines_of(run / "samples.jsonl")[0]}
        for run in runs
    ]
    trials = []
    for key in (key for key in latest[0] if key in latest[1]):
        rows = [of_run[key] for of_run in latest]
        sounds = [_sound(run, row) for run, row in zip(runs, rows)]
        sides = [Clip(f, n, str(r.get("completion", ""))) for f, n, r in zip(sounds, labels, rows) if f is not None]
        if len(sides) == 2:
            trials.append(Trial("two runs", rows[0].get("messages") or key[1], (sides[0], sides[1])))
    return trials


def trials_of_pairs(file: str) -> list[Trial]:
    """Rows with ``chosen_audio`` and ``rejected_audio``, to be judged by people."""
    rows, _ = read_rows(file)
    return _usable(
        [
            Trial(
                "the file's chosen and rejected",
                row.get("prompt", ""),
                (
                    Clip(pair.chosen, "chosen", str(row.get("chosen", ""))),
                    Clip(pair.rejected, "rejected", str(row.get("rejected", ""))),
                ),
            )
            for row, pair in zip(rows, read_audio_pairs(file), strict=True)
        ],
        file,
    )


def _sound(run: Path, row: Mapping[str, Any]) -> Path | None:
    media = row.get("media")
    rows = [m for m in media if isinstance(m, Mapping)] if isinstance(media, list) else []
    return next((f for m in rows if m.get("kind") == "audio" and (f := media_file(run, str(m.get("path", ""))))), None)


def _usable(trials: Sequence[Trial], where: str) -> list[Trial]:
    """Each trial once, without those whose two files hold the same."""
    by_id = {trial.id: trial for trial in trials if len({side.file.read_bytes() for side in trial.sides}) == 2}
    if not by_id:
        raise DatasetError(
            "there are no two different sounds of one prompt to compare",
            where=where,
            why="a run keeps sounds in its audio/, and not all of them; two runs are compared on held-out prompts",
            fix="give a run of a speech policy with trainer.eval_samples above 0, or --pairs FILE",
        )
    return list(by_id.values())

"""Rows that name audio files: rated clips, and pairs, whose files are looked for before anything is computed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data import DatasetError, Media, Prompt, read_rows
from rlhf_core.rewards import Sample
from rlhf_plugin_tts.audio import ClipError, read_clip

REFERENCES = ("reference", "mos", "rating", "mushra_mean")
"""Columns in which a rating is looked for."""
GROUPS = ("group", "engine", "speaker", "stimulus")
"""Columns in which the group of a clip is looked for."""


@dataclass(frozen=True, slots=True)
class RatedClip:
    """A clip and what listeners, or an automatic MOS, gave it."""

    path: Path | None
    """None where the row names no sound: rewards of text alone can be validated too. Of a file that cannot be read
    every value is missing."""
    reference: float
    group: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AudioPair:
    """Two clips of one prompt, the first of them preferred."""

    chosen: Path
    rejected: Path
    where: str


def audio_file(row: Mapping[str, Any], column: str, file: str, where: str) -> Path:
    """The file that a column names, relative to the file of rows."""
    value = row.get(column)
    if not isinstance(value, str) or not value:
        raise DatasetError(
            f"a row has no '{column}' that names a file",
            where=where,
            why=f"its columns: {', '.join(map(str, row))}",
            fix=f'{{"{column}": "clips/a.flac"}}, relative to the file of rows',
        )
    return Path(file).parent / Path(value).expanduser()


def read_rated(file: str, reference: str | None, group: str | None) -> list[RatedClip]:
    rows, sources = read_rows(file)
    clips = []
    for row, source in zip(rows, sources):
        where = f"{file}, {source}"
        sound = next((c for c in ("audio", "file") if c in row), None)
        if sound is None and "completion" not in row:
            sound = "audio"  # refused below, with what a row needs
        path = None if sound is None else audio_file(row, sound, file, where)
        column = reference or next((c for c in REFERENCES if c in row), REFERENCES[0])
        value = row.get(column)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DatasetError(f"column '{column}' is not a rating", where=where, why=f"got {value!r:.80}")
        kind = group or next((c for c in GROUPS if c in row), None)
        if group is not None and group not in row:
            raise DatasetError(f"there is no column '{group}'", where=where, fix="--group COLUMN of speaker or engine")
        clips.append(RatedClip(path, float(value), "" if kind is None else str(row[kind]), dict(row)))
    if len(clips) < 5 or len({clip.reference for clip in clips}) < 2:
        raise DatasetError(f"'{file}' holds {len(clips)} rated clips; at least 5 with different ratings are needed")
    return clips


def read_audio_pairs(file: str) -> list[AudioPair]:
    """Preference pairs of clips: ``chosen_audio`` and ``rejected_audio``."""
    rows, sources = read_rows(file)
    pairs = []
    for row, source in zip(rows, sources):
        where = f"{file}, {source}"
        chosen, rejected = (audio_file(row, c, file, where) for c in ("chosen_audio", "rejected_audio"))
        if gone := next((path for path in (chosen, rejected) if not path.is_file()), None):
            raise DatasetError(f"there is no file '{gone}'", where=where, fix="correct the row")
        if digest(chosen) == digest(rejected):
            raise DatasetError("chosen and rejected are the same sound", where=where, fix="remove that row")
        pairs.append(AudioPair(chosen, rejected, where))
    return pairs


def digest(path: Path) -> str:
    """What a clip is told apart by: its sound, not its name or its format; of a file that holds none, its content."""
    status = path.stat()
    key = (path, status.st_size, status.st_mtime_ns)
    if key not in _digests:
        try:
            clip = read_clip(path)
            content = f"{clip.rate} ".encode() + clip.samples.tobytes()
        except ClipError:
            content = path.read_bytes()
        _digests[key] = hashlib.sha256(content).hexdigest()
    return _digests[key]


_digests: dict[tuple[Path, int, int], str] = {}


def sample_of(clip: RatedClip) -> Sample:
    """A rated clip as a reward sees it: the row's ``text`` or ``prompt`` is what it says."""
    text = next((str(clip.row[c]) for c in ("text", "prompt") if isinstance(clip.row.get(c), str)), "")
    answer = clip.row.get("answer")
    prompt = Prompt(
        str(clip.row.get("id", clip.path)),
        ({"role": "user", "content": text},),
        None if answer is None else str(answer),
        clip.group,
    )
    media = () if clip.path is None else (Media("audio", path=str(clip.path)),)
    return Sample(prompt, str(clip.row.get("completion", text)), media=media)


def groups_of(pairs: Sequence[AudioPair]) -> list[str]:
    """A name per pair, the same for pairs that share a clip, also through others."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for pair in pairs:
        parent[root(digest(pair.chosen))] = root(digest(pair.rejected))
    return [root(digest(pair.chosen)) for pair in pairs]


def disjoint_split(pairs: Sequence[AudioPair], fraction: float, seed: int) -> tuple[list[AudioPair], list[AudioPair]]:
    """(train, held out) so that no clip is on both sides: pairs that share one, also through others, stay together."""
    groups: dict[str, list[AudioPair]] = {}
    for name, pair in zip(groups_of(pairs), pairs):
        groups.setdefault(name, []).append(pair)
    order = sorted(groups, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())
    heldout: set[str] = set()
    for name in order[:-1]:
        if sum(len(groups[n]) for n in heldout) >= fraction * len(pairs):
            break
        heldout.add(name)
    if not heldout:
        raise DatasetError(
            f"no pair can be held out: all {len(pairs)} hang together by the clips they share",
            why="a clip in training and test would inflate the accuracy",
            fix="give pairs of several prompts, or other pairs with --heldout-pairs FILE",
        )
    return (
        [p for name in order if name not in heldout for p in groups[name]],
        [p for name in order if name in heldout for p in groups[name]],
    )


def refuse_shared(train: Sequence[AudioPair], heldout: Sequence[AudioPair]) -> None:
    seen = {digest(path): pair.where for pair in train for path in (pair.chosen, pair.rejected)}
    for pair in heldout:
        for path in (pair.chosen, pair.rejected):
            if digest(path) in seen:
                raise DatasetError(
                    f"'{path}' is in the training pairs and in the held-out ones",
                    where=f"{seen[digest(path)]} and {pair.where}",
                    why="pairs that share a clip inflate the accuracy",
                    fix="hold out pairs of other clips, or leave --heldout-pairs out",
                )

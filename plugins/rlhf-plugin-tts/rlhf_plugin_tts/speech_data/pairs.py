"""Preference pairs of clips: by description, or a policy's best sample against its worst."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_tts.speech_data.catalogue import CONTRASTS, DESCRIPTIONS

Row = dict[str, Any]
Speak = Callable[[Sequence[Prompt], int], list[Rollout]]
"""Prompts and how many samples of each -> rollouts, prompt by prompt."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is sampled and written together: a sentence, or a sentence in one description."""

    name: str
    category: str
    text: str
    description: str = ""
    """For pairs by samples; "" in pairs by description."""


def prompt_of(unit: Unit, description: str) -> Prompt:
    """The sentence, said in a voice; "" leaves the voice open."""
    turns = ({"role": "system", "content": DESCRIPTIONS[description]},) if description else ()
    name = f"speech/{unit.name}/{description or 'plain'}"
    return Prompt(name, (*turns, {"role": "user", "content": unit.text}), source="speech")


def by_description(unit: Unit, speak: Speak) -> list[Row]:
    """One pair for each contrast; the prompt leaves the voice open, so that the better one becomes its default."""
    names = [name for pair in CONTRASTS for name in pair]
    spoken = dict(zip(names, speak([prompt_of(unit, name) for name in names], 1), strict=True))
    prompt = prompt_of(unit, "")
    return [_row(unit, prompt, f"{good}-over-{bad}", spoken[good], spoken[bad], {}) for good, bad in CONTRASTS]


def by_samples(unit: Unit, speak: Speak, score: Callable[[list[Sample]], Sequence[Score]], n: int) -> list[Row]:
    """The best of ``n`` samples against the worst; no pair where fewer than two have a score, or all the same."""
    prompt = prompt_of(unit, unit.description)
    rollouts = speak([prompt], n)
    scores = score([rollout.sample(prompt) for rollout in rollouts])
    scored = [(float(s.value), r) for s, r in zip(scores, rollouts, strict=True) if s.ok and s.value is not None]
    if len(scored) < 2:
        return []
    (low, worst), (high, best) = min(scored, key=lambda p: p[0]), max(scored, key=lambda p: p[0])
    if low == high:
        return []
    return [_row(unit, prompt, "best-over-worst", best, worst, {"score_chosen": high, "score_rejected": low})]


def _row(unit: Unit, prompt: Prompt, what: str, chosen: Rollout, rejected: Rollout, more: Row) -> Row:
    return {
        "id": f"{prompt.id}/{what}",
        "prompt": [dict(m) for m in prompt.messages],
        "chosen": chosen.text,
        "rejected": rejected.text,
        "chosen_audio": chosen.media[0].path,
        "rejected_audio": rejected.media[0].path,
        "category": unit.category,
        **more,
    }


def keep_clips(row: Row, folder: Path) -> Row:
    """The row with its clips copied into the folder beside the file of rows, and named from there."""
    folder.mkdir(parents=True, exist_ok=True)
    named = dict(row)
    for column in ("chosen_audio", "rejected_audio"):
        source = Path(row[column])
        target = folder / source.name
        if not target.is_file():
            shutil.copyfile(source, target)
        named[column] = f"{folder.name}/{source.name}"
    return named


def is_new(row: Row, seen: set[tuple[str, str]]) -> bool:
    """Whether the pair's sides differ, and no earlier pair has the same two; it is remembered."""
    key = (row["chosen"], row["rejected"])
    if row["chosen"] == row["rejected"] or not row["chosen"] or not row["rejected"] or key in seen:
        return False
    seen.add(key)
    return True

"""What of a run there is to listen to: the same prompt before and after training, and two completions of one prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rlhf_plugin_report.media import media_file

MOST = 40
"""Pairs of one kind, evenly over the run."""
BEFORE_AFTER, EARLY_LATE = "before and after training", "early and late in training"
SCORES = "higher and lower score"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    media: Row
    label: str
    """What it is; not shown before the listener has answered."""
    text: str


@dataclass(frozen=True)
class Pair:
    kind: str
    prompt: str
    messages: Sequence[Row]
    """The conversation; empty in runs that did not record it."""
    sides: tuple[Side, Side]

    @property
    def id(self) -> str:
        names = [self.kind, self.prompt, *(str(side.media.get("path")) for side in self.sides)]
        return hashlib.sha256("\n".join(names).encode("utf-8", "replace")).hexdigest()[:16]

    @property
    def voice(self) -> str:
        return " ".join(str(m.get("content", "")) for m in self.messages if m.get("role") == "system")


def pairs_of(run: Path, trace: Sequence[Row], samples: Sequence[Row]) -> list[Pair]:
    """Pairs of differing sounds: held-out before and after training (else steps), best and worst of a prompt."""

    def there(media: Row) -> bool:
        return media.get("kind") == "audio" and media_file(run, str(media.get("path", ""))) is not None

    sampled = [row for row in trace if row.get("event") in ("prompt", "set_aside")]
    over_time = _over_time(samples, lambda r: r, BEFORE_AFTER, there) or _over_time(sampled, _first, EARLY_LATE, there)
    return [*_evenly(over_time), *_evenly(_by_score(sampled, there))]


def _over_time(
    rows: Sequence[Row], of_row: Callable[[Row], Row], kind: str, there: Callable[[Row], bool]
) -> list[Pair]:
    """The first and the last sound of each prompt, where they are of two steps."""
    ends: dict[str, list[tuple[Row, Row, Row]]] = {}
    for row in rows:
        one = of_row(row)
        sound = next((m for m in _maps(one.get("media")) if there(m)), None)
        if sound is not None and isinstance(row.get("step"), int):
            ends_of_prompt = ends.setdefault(f"{row.get('prompt_id')}\n{row.get('messages')}", [])
            ends_of_prompt[1:] = [(row, one, sound)]
    pairs = [
        _pair(kind, row, *(Side(sound, f"step {at['step']}", _text(one)) for at, one, sound in ends_of_prompt))
        for ends_of_prompt in ends.values()
        if len(ends_of_prompt) == 2
        for row in (ends_of_prompt[0][0],)
        if ends_of_prompt[0][0]["step"] != ends_of_prompt[1][0]["step"]
    ]
    return [pair for pair in pairs if _differ(pair)]


def _by_score(rows: Sequence[Row], there: Callable[[Row], bool]) -> list[Pair]:
    pairs = []
    for row in rows:
        scored = [
            (float(one["score"]), n, one, sound)
            for n, one in enumerate(_maps(row.get("completions")))
            if isinstance(one.get("score"), int | float)
            and (sound := next((m for m in _maps(one.get("media")) if there(m)), None)) is not None
        ]
        if len(scored) < 2 or min(scored)[0] == max(scored)[0]:
            continue
        best, worst = max(scored, key=lambda s: s[:2]), min(scored, key=lambda s: s[:2])
        sides = [
            Side(sound, f"{which} score", _text(one))
            for which, (_, _, one, sound) in (("higher", best), ("lower", worst))
        ]
        pairs.append(_pair(SCORES, row, *sides))
    return [pair for pair in pairs if _differ(pair)]


def _pair(kind: str, row: Row, first: Side, second: Side) -> Pair:
    return Pair(kind, str(row.get("prompt", "")), _maps(row.get("messages")), (first, second))


def _first(row: Row) -> Row:
    return next((one for one in _maps(row.get("completions")) if one.get("media")), {})


def _text(one: Row) -> str:
    return str(one.get("completion", one.get("text", "")))


def _differ(pair: Pair) -> bool:
    first, second = (side.media for side in pair.sides)
    return (first.get("sha256") or first.get("path")) != (second.get("sha256") or second.get("path"))


def _evenly(pairs: list[Pair]) -> list[Pair]:
    count = min(MOST, len(pairs))
    return [pairs[i * len(pairs) // count] for i in range(count)]


def _maps(value: Any) -> list[Row]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, Mapping)]

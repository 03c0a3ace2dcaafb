"""Order and filter prompts by a file of pass rates. An id that matches nothing is never passed over in silence."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_core.config import did_you_mean
from rlhf_core.data import DatasetError, Prompt, check_file
from rlhf_core.data.files import parse_json, read_text
from rlhf_core.data.settings import CurriculumSettings

WHAT, SETTING = "curriculum", "dataset.curriculum.path"
ID_COLUMNS = ("id", "prompt_id")
EXAMPLES, SEARCHED = 3, 2000


def read_values(settings: CurriculumSettings) -> dict[str, float]:
    """Id -> number, from rows or from one JSON object."""
    path = settings.path
    check_file(path, WHAT, SETTING)
    text = read_text(path, WHAT)
    pairs = _mapping(text, settings.key)
    if pairs is None:
        rows, lines = parse_json(text, path, WHAT)
        pairs = [_row(row, settings.key, f"{path}, {line}") for row, line in zip(rows, lines)]
    if not pairs:
        raise DatasetError(f"{WHAT} '{path}' is empty", fix="give it at least one id with its number")
    values: dict[str, float] = {}
    for name, value in pairs:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise DatasetError(
                f"{WHAT} '{path}': the value of '{name}' is not a number",
                why=f"it is {value!r:.60}",
                fix=f"correct the file, or name another column with dataset.{WHAT}.key",
            )
        if values.setdefault(name, float(value)) != value:
            raise DatasetError(
                f"{WHAT} '{path}': id '{name}' occurs twice with different values",
                why=f"{values[name]:g} and {float(value):g}",
                fix="keep one of them",
            )
    return values


def _mapping(text: str, key: str) -> list[tuple[str, Any]] | None:
    """(Id, value) of a file that is one JSON object, and not one row."""
    try:
        entries: Any = json.loads(text, object_pairs_hook=list) if text.lstrip()[:1] == "{" else None
    except (ValueError, RecursionError):  # parse_json says why
        return None
    names = {name for name, _ in entries or ()}
    return None if entries is None or (names & {*ID_COLUMNS} and key in names) else entries


def _row(row: Mapping[str, Any], key: str, where: str) -> tuple[str, Any]:
    """(Id, value) of one row."""
    name = next((row[c] for c in ID_COLUMNS if row.get(c) is not None), None)
    if name is None:
        raise DatasetError(
            f"a row of the {WHAT} has no id",
            where=where,
            why=f"its keys: {', '.join(row)}",
            fix='write {"id": ..., "' + key + '": ...}',
        )
    if key not in row:
        raise DatasetError(
            f"the {WHAT} has no '{key}' for '{name}'",
            where=where,
            why=f"its keys: {', '.join(row)}",
            fix=did_you_mean(key, row) or f"name the column with dataset.{WHAT}.key",
        )
    return str(name), row[key]


class Curriculum:
    """Filters and orders prompts by the file that the settings name, which is read at once."""

    def __init__(self, settings: CurriculumSettings) -> None:
        self.settings, self.values = settings, read_values(settings)

    def apply(
        self, prompts: Sequence[Prompt], heldout: Sequence[Prompt], seed: int | None
    ) -> tuple[list[Prompt], Counter[str]]:
        """The training prompts whose value lies in the band, in the configured order, and counts by reason of others.
        Ids of the file that are those of held-out prompts match, but nothing is done with them.
        """
        settings = self.settings
        values, unmatched = match(self.values, prompts, heldout, settings.path)
        missing = [p.id for p in prompts if p.id not in values]
        known = [i for p in prompts if p.id not in values or not missing for i in (p.id, own_id(p))]
        limit = settings.max_unmatched_fraction
        for lost, total, what, others in (
            (unmatched, len(self.values), f"ids of '{settings.path}' match no prompt", known),
            (missing, len(prompts), f"prompts are not in '{settings.path}'", unmatched or list(self.values)),
        ):
            if lost and (len(lost) == total or len(lost) > limit * total):
                raise DatasetError(
                    f"{len(lost)} of {total} {what}",
                    where="first: " + _quoted(lost),
                    why=f"the other side has {_quoted(others)}; nearest to '{lost[0]}': {_nearest(lost[0], others)}",
                    fix="use the dataset's ids, or allow more with "
                    f"dataset.{WHAT}.max_unmatched_fraction (now {limit:g})",
                )
        low, high = settings.band or (-math.inf, math.inf)
        valued = [p for p in prompts if p.id in values]
        in_band = [p for p in valued if low <= values[p.id] <= high]
        _check_left(prompts, in_band, values, settings)
        counts = Counter(curriculum_ids_unmatched=len(unmatched), curriculum_prompts_unmatched=len(missing))
        counts["curriculum_out_of_band"] = len(valued) - len(in_band)
        return _ordered(in_band, values, settings.order, seed), +counts


def match(
    values: Mapping[str, float], prompts: Sequence[Prompt], heldout: Sequence[Prompt], path: str
) -> tuple[dict[str, float], list[str]]:
    """(Value by full prompt id, ids that match nothing). A file may leave a source's label out of its ids."""
    full, short = {p.id: own_id(p) for p in (*prompts, *heldout)}, dict[str, list[str]]()
    for name, short_id in full.items():
        short.setdefault(short_id, []).append(name)
    matched: dict[str, float] = {}
    unmatched: list[str] = []
    for name, value in values.items():
        candidates = [name] if name in full else short.get(name, [])
        if len(candidates) > 1:
            raise DatasetError(
                f"{WHAT} '{path}': id '{name}' is in several sources",
                why=f"it may be {_quoted(candidates)}",
                fix="write ids with their source's label",
            )
        if not candidates:
            unmatched.append(name)
        elif matched.setdefault(candidates[0], value) != value:
            raise DatasetError(
                f"{WHAT} '{path}': '{name}' is '{candidates[0]}', which has another value",
                why=f"{matched[candidates[0]]:g} and {value:g}",
                fix="keep one of them",
            )
    return matched, unmatched


def own_id(prompt: Prompt) -> str:
    """A prompt's id without its source's label. Example: ``17`` for ``gsm8k/17``"""
    return prompt.id.removeprefix(f"{prompt.source}/")


def _check_left(
    prompts: Sequence[Prompt], in_band: Sequence[Prompt], values: Mapping[str, float], settings: CurriculumSettings
) -> None:
    lost = sorted({p.source for p in prompts} - {p.source for p in in_band})
    if not lost:
        return
    source_values = [values[p.id] for p in prompts if p.source == lost[0] and p.id in values]
    if not source_values:
        raise DatasetError(
            f"no prompt of source '{lost[0]}' is in '{settings.path}'",
            why="a source without prompts would silently leave the mixture",
            fix="add its ids to the file, or drop the source",
        )
    raise DatasetError(
        f"no prompt of source '{lost[0]}' has a value in the {WHAT}'s band",
        why=f"its values run from {min(source_values):g} to {max(source_values):g}, the band is {settings.band}",
        fix=f"widen dataset.{WHAT}.band, or drop the source",
    )


def _ordered(in_band: list[Prompt], values: Mapping[str, float], order: str, seed: int | None) -> list[Prompt]:
    """Prompts by value; equal ones in a seeded order."""
    if order == "none":
        return in_band
    if seed is not None:
        in_band = [in_band[i] for i in np.random.default_rng([seed, len(in_band)]).permutation(len(in_band))]
    sign = -1.0 if order == "easy_first" else 1.0
    return sorted(in_band, key=lambda p: sign * values[p.id])


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n, _ in zip(names, range(EXAMPLES)))


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known[:SEARCHED], n=1, cutoff=0.0)
    return f"'{near[0]}'" if near else "none"

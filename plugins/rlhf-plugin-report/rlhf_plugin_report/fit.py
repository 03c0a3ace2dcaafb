"""As much of the completions as one page holds, thinned evenly, and in words what was left out and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_plugin_report.completions import TOKENS, Row
from rlhf_plugin_report.pack import packed
from rlhf_plugin_report.read import RunView

MOST_BYTES = 7_600_000
"""Of a whole page, so that it opens at once and can be sent."""
LEAST_DATA = 1_000_000
"""Bytes for the data also where the rest of the page is large."""
CLOSE = 0.97
"""Of a share that was computed from sizes, so that one attempt does."""
ATTEMPTS = 6


def fitted(runs: Sequence[RunView], room: int, beside: Mapping[str, Any]) -> tuple[Sequence[RunView], bytes]:
    """Packed data of at most about ``room`` bytes: first the tokens' numbers are thinned, then the completions.

    Args:
        runs: with everything that was read.
        room: bytes, before they are written as text.
        beside: what else is packed.

    Returns:
        The runs with what was left out in their ``notes``, and the bytes.
    """

    def packed_rows(shown: Sequence[RunView]) -> bytes:
        return packed([{**row, "run": run.name} for run in shown for row in run.rollouts], **beside)

    data = packed_rows(runs)
    if len(data) <= room:
        return runs, data
    bare = packed_rows([_thinned_tokens(run, 0.0) for run in runs])
    if len(bare) <= room:
        share = CLOSE * (room - len(bare)) / (len(data) - len(bare))
        return _until_it_fits(runs, room, share, _thinned_tokens, packed_rows)
    runs = [_thinned_tokens(run, 0.0) for run in runs]
    return _until_it_fits(runs, room, CLOSE * room / len(bare), _thinned_completions, packed_rows)


def _until_it_fits(
    runs: Sequence[RunView],
    room: int,
    share: float,
    thinned: Callable[[RunView, float], RunView],
    packed_rows: Callable[[Sequence[RunView]], bytes],
) -> tuple[Sequence[RunView], bytes]:
    shown, data = runs, b""
    for _ in range(ATTEMPTS):
        shown = [thinned(run, share) for run in runs]
        data = packed_rows(shown)
        if len(data) <= room:
            break
        share *= CLOSE * room / len(data)
    return shown, data


def _thinned_tokens(run: RunView, share: float) -> RunView:
    """Numbers of tokens of that share of the completions that have some; the others keep text, score and parts."""
    places = [n for n, row in enumerate(run.rollouts) if "ids" in row]
    if not places:
        return run
    kept = evenly(places, share)
    dropped = set(places).difference(kept)
    rows = [_without_tokens(row) if n in dropped else row for n, row in enumerate(run.rollouts)]
    note = (
        f"token by token are {len(kept)} of the {len(places)} completions whose tokens the trace kept, evenly over the "
        f"trace: with all, this page would be larger than {MOST_BYTES / 1e6:g} MB. All are in trace.jsonl (rlhf "
        "trace show RUN --step N)"
    )
    return replace(run, rollouts=rows, notes=[*run.notes, note])


def _thinned_completions(run: RunView, share: float) -> RunView:
    rows = run.rollouts
    kept = evenly(rows, share)
    if len(kept) == len(rows):
        return run
    note = (
        f"{len(kept)} of {len(rows)} completions are on this page, evenly over the trace: with all, it would be larger "
        f"than {MOST_BYTES / 1e6:g} MB. All are in trace.jsonl and plays.jsonl"
    )
    return replace(run, rollouts=kept, notes=[*run.notes, note])


def evenly(rows: Sequence[Any], share: float) -> Sequence[Any]:
    """A share of them, in their order and at the same distance from each other."""
    count = min(len(rows), math.floor(share * len(rows)))
    return rows if count == len(rows) else [rows[i * len(rows) // count] for i in range(count)]


def _without_tokens(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in TOKENS}

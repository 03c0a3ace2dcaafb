"""Completions that a run's trace kept, token by token where it has tokens; examples of runs that learn from data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_core.runs import StoredRun
from rlhf_plugin_report.media import MediaReader
from rlhf_plugin_report.rows import PER_TOKEN
from rlhf_plugin_report.trace_index import Entries, TraceIndex
from rlhf_plugin_report.turns import turns_of

log = logging.getLogger("rlhf.report")
Row = Mapping[str, Any]
BYTES = 60_000_000
"""Of completions of a run that are read for a page at all, before they are packed."""
TEXT = 100_000
"""Characters of a text; what comes after them is counted."""
SHOWN = (
    "text",
    "score",
    "status",
    "parts",
    "advantage",
    "finish_reason",
    "detail",
    "info",
    "policy_version",
    "versions",
    "tokens",
    "segments",
)
TOKENS = ("ids", "pieces", "returns", "mask", *PER_TOKEN)
"""Of a completion's row: what is there once for each token."""
POINTS = 3000
"""Most points of a scatter chart."""


@dataclass(frozen=True)
class TraceView:
    rollouts: Sequence[Row]
    left_out: str
    """What was thinned out and by which rule, "" if nothing was."""
    unread: int
    """Rows that lack what a prompt's row has."""
    quantity: str
    """What ``distribution`` and ``points`` show: score, margin or loss."""
    distribution: Sequence[Mapping[str, float]]
    points: Sequence[tuple[int, float, int]]
    """(Length in tokens, quantity, step)."""


def read_completions(run: StoredRun, trace: TraceIndex, limit: int, media: MediaReader) -> TraceView:
    """Completions or, of a run that learns from data, examples."""
    examples = not len(trace.completions)
    entries = trace.examples if examples else trace.completions
    quantity = "score" if not examples else "margin" if entries.has_margin else "loss"
    tokens, values, steps = entries.measured(quantity)
    indices = _thinned(entries, limit)
    pieces = _pieces(run) if any(entries.has_ids[n] for n in indices) else None
    if trace.has_media:
        media.fill([_media(row, completion) for row, _, completion in trace.shown(entries, indices)])
    shown = trace.shown(entries, indices)
    rows = [_example(*one) if examples else _completion(*one, pieces, media) for one in shown]
    points = range(len(values)) if len(values) <= POINTS else [i * len(values) // POINTS for i in range(POINTS)]
    return TraceView(
        rows,
        _left_out(len(entries), len(indices), limit, "examples" if examples else "completions"),
        trace.unread,
        quantity,
        _distribution(values, steps),
        [(int(tokens[i]), float(values[i]), int(steps[i])) for i in points],
    )


def _thinned(entries: Entries, limit: int) -> Sequence[int]:
    """Indices, evenly, to the limit and to :data:`BYTES`."""
    size, total = sum(entries.bytes), len(entries)
    count = min(total, limit, total if size <= BYTES else total * BYTES // size)
    return range(total) if count == total else [i * total // count for i in range(count)]


def _left_out(count: int, shown: int, limit: int, what: str) -> str:
    if shown == count:
        return ""
    why = f"a page shows {limit} of a run (--rollouts)" if shown == limit else f"they are over {BYTES / 1e6:g} MB"
    return f"{shown} of {count} {what} are on this page, evenly over the trace: {why}. All are in trace.jsonl"


def _completion(
    row: Row, place: int, completion: Row, pieces: Callable[[Any], list[str]] | None, shown_media: MediaReader
) -> Row:
    out = {key: completion[key] for key in SHOWN if completion.get(key) not in (None, "", {}, [])}
    out |= {key: cut(str(out[key])) for key in ("text", "detail") if key in out}
    out |= {"step": row["step"], "id": row["prompt_id"], "prompt": cut(str(row["prompt"])), "place": place}
    out["scores"] = [c.get("score") for c in row["completions"]]
    if "seed" in completion:
        out["seed"] = str(completion["seed"])  # of 64 bits, which JavaScript's numbers do not hold
    if row["event"] != "prompt":
        out["aside"] = True
    if completion.get("turns"):
        out["turns"] = turns_of(completion["turns"])
    if media := _media(row, completion):
        out["media"] = [shown_media(one) for one in media]
    if pieces is not None and "completion_ids" in completion:
        out["ids"], out["pieces"] = completion["completion_ids"], pieces(completion["completion_ids"])
        for key in (*PER_TOKEN, "returns", "mask"):
            if len(completion.get(key) or ()) == len(out["ids"]):
                out[key] = completion[key]
    return out


def _media(row: Row, completion: Row) -> list[Any]:
    return [*(row.get("media") or ()), *(completion.get("media") or ())]


def _example(row: Row, place: int, example: Row) -> Row:
    texts = {k: cut(v) for k, v in example.items() if isinstance(v, str) and k != "id"}
    numbers = {k: v for k, v in example.items() if isinstance(v, int | float) and k != "tokens"}
    out = {"step": row["step"], "id": example["id"], "place": place, "tokens": example["tokens"], "parts": numbers}
    return {**out, "prompt": texts.pop("prompt", ""), "texts": texts, "example": True}


def cut(text: str) -> str:
    """The first :data:`TEXT` characters, and how many there are behind them."""
    return text if len(text) <= TEXT else f"{text[:TEXT]} … ({len(text) - TEXT} more characters in the run's files)"


def _distribution(values: NDArray[np.float64], steps: NDArray[np.int64]) -> list[Mapping[str, float]]:
    if not len(values):
        return []
    order = np.argsort(steps, kind="stable")
    begins = np.flatnonzero(np.diff(steps[order], prepend=-1))
    wanted = (10, 25, 50, 75, 90)
    of_steps = np.split(values[order], begins[1:])
    rows = [(int(steps[order[n]]), np.percentile(of_step, wanted)) for n, of_step in zip(begins, of_steps)]
    return [{"step": step, **{f"q{q}": float(v) for q, v in zip(wanted, quantiles)}} for step, quantiles in rows]


def _pieces(run: StoredRun) -> Callable[[Any], list[str]] | None:
    saved = [run.path / "checkpoints" / f"step-{n:06d}" / "model" for n in run.checkpoints[::-1]]
    trained = str((run.plan.config.get("model") or {}).get("path", ""))  # where the run saved nothing
    for candidate in (str(run.path / "final"), *map(str, saved), trained):
        if candidate == "pocket" or Path(candidate).expanduser().is_dir():
            try:
                tokenizer: Any = load_tokenizer(ModelConfig(path=candidate))
            except Exception as error:  # a damaged folder; libraries raise what they like
                log.warning("tokens are shown as text only: %s", error)
                return None
            return lambda ids: list(texts_of(tokenizer, ids))
    return None


def texts_of(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text, decoded after one piece of context; a character comes with its last token."""
    context, decoded = 0, 0
    for n in range(1, len(ids) + 1):
        before, text = (tokenizer.decode(ids[context:end], skip_special_tokens=False) for end in (decoded, n))
        if text.endswith("\ufffd") and n < len(ids):
            yield ""
            continue
        yield text[len(before) :] if text.startswith(before) else tokenizer.decode(ids[decoded:n])
        context, decoded = decoded, n

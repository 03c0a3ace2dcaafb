"""The result of `rlhf data check` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 40
"""Characters of the longest bar."""


def lines(result: Mapping[str, Any], most: int, file: str) -> Iterator[str]:
    """One line of text after the other."""
    for line in _all_lines(result, most):
        yield line.replace(f"{file}, ", "").replace(f"{file}:", "line ")


def _all_lines(result: Mapping[str, Any], most: int) -> Iterator[str]:
    yield f"{result['algorithm']} reads {result['reads']}: {result['train']} to train on, {result['heldout']} held out"
    read = sum(result["forms"].values())
    yield from (f"  {count:7} rows  {form}" for form, count in result["forms"].items())
    for verb, columns in result["columns"].items():
        if columns:
            yield f"  columns {verb}: " + ", ".join(_column(n, c, read) for n, c in columns.items())
    yield from _rows_left_out(result, most)
    yield from _lengths(result["lengths"], result["max_dropped_fraction"])
    yield from _duplicates(result["duplicates"])
    for row in result["contamination"]:
        yield from _contamination(row)


def _column(name: str, count: int, rows: int) -> str:
    return name if count == rows else f"{name} ({count} rows)"


def _rows_left_out(result: Mapping[str, Any], most: int) -> Iterator[str]:
    broken, dropped = result["broken"], result["dropped"]
    yield ""
    yield f"broken rows: {len(broken) or 'none'}"
    for row in broken[:most]:
        yield f"  {row['where']}: {row['what']}" if "where" in row else f"  {row['what']}"
        yield from (f"      {key}: {row[key]}" for key in ("why", "fix") if key in row)
    if len(broken) > most:
        yield f"  and {len(broken) - most} more; --broken {len(broken)} shows all"
    yield from (f"{reason}: {count}" for reason, count in result["counts"].items())
    yield from (f"  {row['where']}: {row['text']}" for row in dropped[:most])


def _lengths(lengths: Mapping[str, Any], allowed: float) -> Iterator[str]:
    for split, stats in lengths.items():
        share = stats["beyond"] / sum(row["rows"] for row in stats["histogram"])
        yield ""
        yield (
            f"tokens, {split}: {stats['min']} to {stats['max']}, half up to {stats['p50']}, 95% up to {stats['p95']}, "
            f"99% up to {stats['p99']}"
        )
        yield f"  {stats['becomes']} beyond {stats['limit']}: {stats['beyond']} ({share:.1%}); {stats['limit_from']}"
        if share > allowed and stats["becomes"] == "dropped":
            yield f"  training would refuse to start: dataset.max_dropped_fraction is {allowed:.0%}"
        largest = max(row["rows"] for row in stats["histogram"])
        for row in stats["histogram"]:
            bar = "#" * round(WIDTH * row["rows"] / largest)
            yield f"  {row['from']:6} - {row['to']:<6} {row['rows']:7}  {bar}".rstrip()


def _duplicates(stats: Mapping[str, Any]) -> Iterator[str]:
    overlap = stats["overlap"]
    yield ""
    yield f"exact duplicates: {stats['exact']['rows'] or 'none'}" + _examples(stats["exact"]["examples"])
    yield f"same prompt again: {stats['same_prompt']['rows'] or 'none'}" + _examples(stats["same_prompt"]["examples"])
    near = [pair["where"] for pair in stats["near"]["examples"]]
    yield f"near duplicates: {stats['near']['rows'] or 'none'}" + _examples(near)
    shared = f"{overlap['rows'] or 'none'}, nearly the same {overlap['near_rows'] or 'none'}"
    yield f"held-out rows asked in training too: {shared}" + _examples(overlap["examples"])


def _examples(groups: Sequence[Sequence[str]]) -> str:
    shown = "; ".join(" = ".join(group) for group in groups[:2])
    return f"  ({shown}{', ...' if len(groups) > 2 else ''})" if shown else ""


def _contamination(stats: Mapping[str, Any]) -> Iterator[str]:
    total, contained = stats["prompts"], stats["contained"]
    yield ""
    yield (
        f"{stats['against']} ({total} prompts), {stats['ngram']}-grams: {stats['shared']} prompts share one with "
        f"{stats['training_rows']} training rows, {contained} ({contained / max(1, total):.1%}) stand in one row "
        "by half or more"
    )
    for pair in stats["examples"]:
        yield f"  {pair['coverage']:4.0%} of {pair['benchmark']} in {pair['where']}: {pair['words']!r}"

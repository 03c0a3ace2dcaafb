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
    for found in result["contamination"]:
        yield from _contamination(found)


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
    for split, found in lengths.items():
        share = found["beyond"] / sum(row["rows"] for row in found["histogram"])
        yield ""
        yield (
            f"tokens, {split}: {found['min']} to {found['max']}, half up to {found['p50']}, 95% up to {found['p95']}, "
            f"99% up to {found['p99']}"
        )
        yield f"  {found['becomes']} beyond {found['limit']}: {found['beyond']} ({share:.1%}); {found['limit_from']}"
        if share > allowed and found["becomes"] == "dropped":
            yield f"  training would refuse to start: dataset.max_dropped_fraction is {allowed:.0%}"
        largest = max(row["rows"] for row in found["histogram"])
        for row in found["histogram"]:
            bar = "#" * round(WIDTH * row["rows"] / largest)
            yield f"  {row['from']:6} - {row['to']:<6} {row['rows']:7}  {bar}".rstrip()


def _duplicates(found: Mapping[str, Any]) -> Iterator[str]:
    overlap = found["overlap"]
    yield ""
    yield f"exact duplicates: {found['exact']['rows'] or 'none'}" + _examples(found["exact"]["examples"])
    yield f"same prompt again: {found['same_prompt']['rows'] or 'none'}" + _examples(found["same_prompt"]["examples"])
    near = [pair["where"] for pair in found["near"]["examples"]]
    yield f"near duplicates: {found['near']['rows'] or 'none'}" + _examples(near)
    told = f"{overlap['rows'] or 'none'}, nearly the same {overlap['near_rows'] or 'none'}"
    yield f"held-out rows asked in training too: {told}" + _examples(overlap["examples"])


def _examples(places: Sequence[Sequence[str]]) -> str:
    shown = "; ".join(" = ".join(group) for group in places[:2])
    return f"  ({shown}{', ...' if len(places) > 2 else ''})" if shown else ""


def _contamination(found: Mapping[str, Any]) -> Iterator[str]:
    total, contained = found["prompts"], found["contained"]
    yield ""
    yield (
        f"{found['against']} ({total} prompts), {found['ngram']}-grams: {found['shared']} prompts share one with "
        f"{found['training_rows']} training rows, {contained} ({contained / max(1, total):.1%}) stand in one row "
        "by half or more"
    )
    for pair in found["examples"]:
        yield f"  {pair['coverage']:4.0%} of {pair['benchmark']} in {pair['where']}: {pair['words']!r}"

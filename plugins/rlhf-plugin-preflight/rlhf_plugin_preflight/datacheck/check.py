"""Everything that `rlhf data check` finds out, as one mapping of JSON values."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.data import Datasets
from rlhf_core.models import ModelError
from rlhf_plugin_preflight.datacheck.contamination import examine_contamination
from rlhf_plugin_preflight.datacheck.duplicates import examine_duplicates
from rlhf_plugin_preflight.datacheck.items import Item, Reading, read_items
from rlhf_plugin_preflight.datacheck.lengths import Measure

READERS = ("rows", "pairs", "demonstrations")


@cache
def with_name(names: frozenset[str], name: str) -> frozenset[str]:
    """A set of names with one more; one object, however many rows have it."""
    return names | {name}


class RecordedRow(dict[str, Any]):
    """A row that notes the names of the columns whose values are asked for."""

    __slots__ = ("used",)

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.used: frozenset[str] = frozenset()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if dict.__contains__(self, key) else default

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if value is not None and key not in self.used:
            self.used = with_name(self.used, key)
        return value


class RecordingSource:
    """A dataset component whose rows are :class:`RecordedRow`; otherwise the component itself."""

    def __init__(self, component: Any) -> None:
        self.component = component
        self.rows_read: list[tuple[str, int, RecordedRow]] = []
        """Split, place in it from 0, and row."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.component, name)
        return (lambda split: self._recorded(split, value(split))) if name in READERS else value

    def _recorded(self, split: str, rows: Sequence[Mapping[str, Any]]) -> list[RecordedRow]:
        recorded = [RecordedRow(row) for row in rows]
        self.rows_read += [(split, number, row) for number, row in enumerate(recorded)]
        return recorded


def form_of(row: RecordedRow, columns: Mapping[str, str]) -> str:
    """What a row's form is called (``messages``), by the columns that were read (``columns``: ours -> the file's)."""
    ours = {theirs.split(".")[0]: name for name, theirs in columns.items()}
    values = {ours.get(name, name): dict.get(row, name) for name in row.used}
    prompt_column = next(
        (name for name in ("prompt", "messages", "question", "conversations", "instruction") if name in values), ""
    )
    parts = [_prompt_form(prompt_column, values.get(prompt_column))] if prompt_column else []
    if "chosen" in values:
        is_conversation = isinstance(values["chosen"], list) and not prompt_column
        transcript = isinstance(values["chosen"], str) and "\n\nAssistant:" in values["chosen"] and not prompt_column
        sides = "Human/Assistant transcripts" if transcript else "conversations" if is_conversation else ""
        return " + ".join([*parts, f"chosen/rejected {sides}".strip()])
    parts += [
        name for name in ("completion", "response", "output", "steps", "answer", "labels", "label") if name in values
    ]
    return " + ".join(parts) or "unknown"


def _prompt_form(name: str, value: Any) -> str:
    turns = value if isinstance(value, list) else []
    if turns and isinstance(turns[0], Mapping) and "from" in turns[0]:
        return "ShareGPT"
    if name == "instruction":
        return "Alpaca"
    return "messages" if turns else name


def columns_of(rows: Sequence[RecordedRow]) -> tuple[dict[str, int], dict[str, int]]:
    """Column -> rows that have a value in it: those that were read, and the others."""
    used: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for row in rows:
        for name, value in dict.items(row):
            if value is not None:
                (used if name in row.used else other)[name] += 1
    left = {name: count for name, count in other.items() if name not in used}
    return dict(used), left


class Benchmark:
    """A benchmark's name, as the user wrote it, and its prompts, to compare with."""

    def __init__(self, name: str, items: Sequence[Item]) -> None:
        self.name, self.items = name, items


def check_data(ctx: BuildContext, benchmarks: Sequence[Benchmark], ngram: int) -> dict[str, Any]:
    """Read the run's data as training would; look for benchmarks by n-grams of ``ngram`` words; report."""
    collects = gc.isenabled()
    gc.disable()  # nothing here is in a cycle, and a search through millions of rows takes seconds
    try:
        return _check(ctx, benchmarks, ngram)
    finally:
        if collects:
            gc.enable()


def _check(ctx: BuildContext, benchmarks: Sequence[Benchmark], ngram: int) -> dict[str, Any]:
    measure = Measure(ctx.config)
    datasets = Datasets(ctx.config.dataset, ctx)
    recorders = [recorded(source) for source in datasets.sources]
    reading = read_items(datasets, ctx)
    listed = {item.where for item in reading.items} | {where for where, _, _ in datasets.dropped}
    listed |= {error.where for error in reading.broken}
    looked_at = [
        (source, row)
        for source, recorder in zip(datasets.sources, recorders)
        for split, number, row in recorder.rows_read
        if source.where(split, number) in listed
    ]
    rows = [row for _, row in looked_at]
    forms = Counter(form_of(row, source.settings.columns) for source, row in looked_at)
    refused: list[tuple[Item, ModelError]] = []
    lengths = {
        split: summary
        for split in ("train", "heldout")
        if (summary := measure.lengths([i for i in reading.items if i.split == split], refused).summary())
    }
    broken = [_broken_row(error) for error in reading.broken]
    return {
        "max_dropped_fraction": ctx.config.dataset.max_dropped_fraction,
        "algorithm": ctx.config.trainer.name,
        "reads": reading.kind,
        "rows": sum(len(recorder.rows_read) for recorder in recorders),
        "train": sum(item.split == "train" for item in reading.items),
        "heldout": sum(item.split == "heldout" for item in reading.items),
        "forms": dict(forms.most_common()),
        "columns": _columns(rows, reading),
        "broken": broken + [{**_broken_row(error), "where": item.where} for item, error in refused],
        "counts": dict(datasets.counts),
        "dropped": [{"where": w, "reason": reason, "text": text} for w, reason, text in datasets.dropped],
        "lengths": lengths,
        "duplicates": examine_duplicates(reading.items),
        "contamination": [examine_contamination(reading.items, b.items, ngram, b.name) for b in benchmarks],
    }


def recorded(source: Any) -> RecordingSource:
    """Put a recording component in the place of a source's own."""
    source.component = RecordingSource(source.component)
    return source.component


def _columns(rows: Sequence[RecordedRow], reading: Reading) -> dict[str, Any]:
    used, left = columns_of(rows)
    carried = reading.kind == "prompts"
    return {"read": used, "carried": left if carried else {}, "ignored": {} if carried else left}


def _broken_row(error: RlhfError) -> dict[str, str]:
    return {key: value for key in ("what", "where", "why", "fix") if (value := getattr(error, key))}

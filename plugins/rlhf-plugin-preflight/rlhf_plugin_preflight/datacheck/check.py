"""Everything that `rlhf data check` finds out, as one mapping of JSON values."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.data import Datasets
from rlhf_core.models import ModelError
from rlhf_plugin_preflight.datacheck.contamination import examine_contamination
from rlhf_plugin_preflight.datacheck.duplicates import Texts, examine_duplicates
from rlhf_plugin_preflight.datacheck.items import CheckedRows, Item, Reading, RecordedRow, RecordedRows, read_items
from rlhf_plugin_preflight.datacheck.lengths import Measure

READERS = ("rows", "pairs", "demonstrations")


class RecordingSource:
    """A dataset component whose rows are :class:`RecordedRow`; otherwise the component itself."""

    def __init__(self, component: Any) -> None:
        self.component = component
        self.rows_read: list[tuple[str, RecordedRows]] = []
        """Split, and its rows."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.component, name)
        return (lambda split: self._recorded(split, value(split))) if name in READERS else value

    def _recorded(self, split: str, rows: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        checked = isinstance(rows, CheckedRows)
        recorded = RecordedRows(rows if checked else list(rows))
        self.rows_read.append((split, recorded))
        return recorded if checked else list(recorded)


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


class Columns(NamedTuple):
    """Counts of some rows: by form, and by columns with a value, those that were read and the others."""

    forms: Counter[str]
    used: Counter[str]
    left: dict[str, int]


def columns_of(rows: Iterable[tuple[Any, RecordedRow]]) -> Columns:
    """Look at rows, each with its source."""
    forms, used, other = Counter[str](), Counter[str](), Counter[str]()
    for source, row in rows:
        forms[form_of(row, source.settings.columns)] += 1
        for name, value in dict.items(row):
            if value is not None:
                (used if name in row.used else other)[name] += 1
    return Columns(forms, used, {name: count for name, count in other.items() if name not in used})


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
    refused: list[tuple[Item, ModelError]] = []
    texts = Texts()
    lengths = {
        "train": measure.lengths(reading.train, refused, texts.add).summary(),
        "heldout": measure.lengths(reading.heldout, refused).summary(),
    }
    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(columns_of, _looked_at(datasets, recorders, reading))
        duplicates = examine_duplicates(texts, reading.train, list(reading.heldout))
        columns = counting.result()
    broken = [_broken_row(error) for error in reading.broken]
    return {
        "max_dropped_fraction": ctx.config.dataset.max_dropped_fraction,
        "algorithm": ctx.config.trainer.name,
        "reads": reading.kind,
        "rows": sum(len(rows) for recorder in recorders for _, rows in recorder.rows_read),
        "train": len(reading.train),
        "heldout": len(reading.heldout),
        "forms": dict(columns.forms.most_common()),
        "columns": _columns(columns, reading),
        "broken": broken + [{**_broken_row(error), "where": item.where} for item, error in refused],
        "counts": dict(datasets.counts),
        "dropped": [{"where": w, "reason": reason, "text": text} for w, reason, text in datasets.dropped],
        "lengths": {split: summary for split, summary in lengths.items() if summary},
        "duplicates": duplicates,
        "contamination": [examine_contamination(reading.train, b.items, ngram, b.name) for b in benchmarks],
    }


def recorded(source: Any) -> RecordingSource:
    """Put a recording component in the place of a source's own."""
    source.component = RecordingSource(source.component)
    return source.component


def _looked_at(
    datasets: Datasets, recorders: Sequence[RecordingSource], reading: Reading
) -> Iterator[tuple[Any, RecordedRow]]:
    """The rows that were looked at, each with its source: not those beyond a limit."""
    rows_read = [
        (s, split, rows) for s, recorder in zip(datasets.sources, recorders) for split, rows in recorder.rows_read
    ]
    count = len(reading.train) + len(reading.heldout) + len(datasets.dropped)
    one_each = datasets.heldout is None and reading.kind != "unpaired" and not reading.broken
    every_row = one_each and count == sum(len(rows) for _, _, rows in rows_read)
    places: set[str] = set()
    if not every_row:
        places = {item.where for items in (reading.train, reading.heldout) for item in items}
        places.update(where for where, _, _ in datasets.dropped)
        places.update(error.where for error in reading.broken)
    for source, split, rows in rows_read:
        for number in rows.numbers:
            if every_row or source.where(split, number) in places:
                yield source, rows.make(number)


def _columns(columns: Columns, reading: Reading) -> dict[str, Any]:
    carried = reading.kind == "prompts"
    left = columns.left
    return {"read": dict(columns.used), "carried": left if carried else {}, "ignored": {} if carried else left}


def _broken_row(error: RlhfError) -> dict[str, str]:
    return {key: value for key in ("what", "where", "why", "fix") if (value := getattr(error, key))}

"""Everything that `rlhf data check` finds out, as one mapping of JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.data import Datasets
from rlhf_core.models import ModelError
from rlhf_plugin_preflight.datacheck.contamination import examine_contamination
from rlhf_plugin_preflight.datacheck.duplicates import examine_duplicates
from rlhf_plugin_preflight.datacheck.items import Item, Reading, read_items
from rlhf_plugin_preflight.datacheck.lengths import Measure
from rlhf_plugin_preflight.datacheck.rows import RecordedRow, RecordingSource, columns_of, form_of


class Benchmark:
    """A benchmark's name, as the user wrote it, and its prompts, to compare with."""

    def __init__(self, name: str, items: Sequence[Item]) -> None:
        self.name, self.items = name, items


def check_data(ctx: BuildContext, benchmarks: Sequence[Benchmark], ngram: int) -> dict[str, Any]:
    """Read the run's data set as training would, look for the benchmarks in its training rows by n-grams of ``ngram``
    words, and say what it found."""
    measure = Measure(ctx.config)
    datasets = Datasets(ctx.config.dataset, ctx)
    recorders = [recorded(source) for source in datasets.sources]
    reading = read_items(datasets, ctx)
    places = {item.where for item in reading.items} | {where for where, _, _ in datasets.dropped}
    places |= {error.where for error in reading.broken}
    looked_at = [
        (source, row)
        for source, recorder in zip(datasets.sources, recorders)
        for split, number, row in recorder.rows_read
        if source.where(split, number) in places
    ]
    rows = [row for _, row in looked_at]
    forms = Counter(form_of(row, source.settings.columns) for source, row in looked_at)
    refused: list[tuple[Item, ModelError]] = []
    lengths = {
        split: found
        for split in ("train", "heldout")
        if (found := measure.lengths([i for i in reading.items if i.split == split], refused).summary())
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

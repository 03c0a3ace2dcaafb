"""What a dataset drops reaches the summary of an offline run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from rlhf_core.trainers.config import OfflineTrainerConfig
from rlhf_core.trainers.offline import OfflineTrainer


def test_rows_dropped_while_reading_are_in_the_sessions_counts() -> None:
    datasets = SimpleNamespace(counts=Counter())

    def items(split: str) -> list[str]:
        datasets.counts["pairs_identical"] += 2
        return ["a", "b"]

    session = SimpleNamespace(counts=Counter({"examples_too_long": 1}))
    task = SimpleNamespace(datasets=datasets, items=items)
    ctx = SimpleNamespace(session=session, strategy=None)
    OfflineTrainer(OfflineTrainerConfig(name="x"), ctx, task)  # type: ignore[arg-type]
    assert session.counts == {"examples_too_long": 1, "pairs_identical": 4}

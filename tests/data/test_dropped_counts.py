"""What a dataset drops reaches the summary of an offline run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

from rlhf_core.data.datasets import Datasets
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.component_set import ComponentSet
from rlhf_core.training.offline.config import OfflineTrainerConfig
from rlhf_core.training.offline.trainer import OfflineTrainer
from rlhf_core.training.rollout_batch import TrainingSample


def test_rows_dropped_while_reading_are_in_the_sessions_counts(
    datasets: Callable[..., Datasets], write: Callable[..., str]
) -> None:
    rows = [{"prompt": f"q{i}", "completion": "x" if i else " "} for i in range(20)]
    loaded = datasets(name="jsonl", path=write("a.jsonl", rows))

    def items(split: str) -> list[TrainingSample]:
        return [TrainingSample(r.id, (1,), (2,), None, None) for r in loaded.demonstrations(split)]  # type: ignore[arg-type]

    session = SimpleNamespace(
        counts=Counter({"examples_too_long": 1}),
        components=ComponentSet(),
        metrics=SimpleNamespace(total_steps=None),
    )
    ctx = SimpleNamespace(
        session=session, strategy=None, world_size=1, run_dir=None, config=None, seed=0, registry=Registry(disabled=())
    )
    OfflineTrainer(OfflineTrainerConfig(name="x"), ctx, SimpleNamespace(datasets=loaded, items=items))  # type: ignore
    assert session.counts == {"examples_too_long": 1, "demonstrations_empty": 1}

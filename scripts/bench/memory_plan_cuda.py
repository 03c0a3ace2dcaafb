"""What `rlhf memory plan` says against what torch's allocator gave out on cards, in the same run, phase by phase.

The rows of :mod:`.memory_plan` with the smaller batches, and FSDP with its reference offloaded (C), for the models of
RLHF_BENCH_MODEL. Rows of two processes need two cards and are left out with one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench import memory_plan
from scripts.bench._memory_run import plan_and_measure
from scripts.bench.memory_plan import ALGORITHMS, FSDP, Layout, Row, equal_rows, errors, settings_of

ON_CUDA = "strategy.device=cuda"
OFFLOADED = "C, offloaded"


def rows() -> dict[str, Row]:
    more = {
        f"{algo}, FSDP, offload": Row(algo, Layout(2, (*FSDP, "strategy.offload=true"), OFFLOADED))
        for algo in ALGORITHMS
    }
    return {**memory_plan.rows(), **more}


def cases() -> dict[str, Callable[[], Any]]:
    """Every row that this machine has cards for; none without a card, or without models in RLHF_BENCH_MODEL."""
    import torch

    cards = torch.cuda.device_count()
    models = os.environ.get("RLHF_BENCH_MODEL", "").split(os.pathsep) if cards else []
    here = {name: row for name, row in rows().items() if row.layout.ranks <= cards}
    return {f"{Path(m).name}: {name}": partial(run, m, row) for m in models if m for name, row in here.items()}


def arguments(model: str, row: Row) -> tuple[dict[str, str], tuple[str, ...], int, str]:
    given = {key: equal_rows().get(name, name) for key, name in ALGORITHMS[row.algo][0].items()}
    names = {"algo": row.algo, "model": model, **given}
    return names, (*settings_of("135M", row), ON_CUDA), row.layout.ranks, "cuda"


def run(model: str, row: Row) -> dict[str, Any]:
    import torch

    result = plan_and_measure(*arguments(model, row))
    return {**result, "card": torch.cuda.get_device_name(), "reference": row.reference, **errors(result)}

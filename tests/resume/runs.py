"""What a run leaves, a run cut back to a checkpoint as if it had been killed there, and how two runs are compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.cli.main import main

Tensors = dict[str, torch.Tensor]


def train(*arguments: str) -> int:
    """`rlhf train` in this process."""
    with pytest.raises(SystemExit) as caught:
        main(["train", *arguments])
    return int(caught.value.code or 0)


class Left(NamedTuple):
    """Everything that a run leaves, but for times."""

    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    streams: dict[str, str]
    """File -> text, of ``trace.jsonl`` and ``samples.jsonl``."""
    tensors: dict[str, Tensors]
    """File -> tensors: the final weights, and the last checkpoint with optimizer, critic and reference."""

    def at(self, step: int) -> dict[str, Any]:
        """All metrics of a step."""
        return {k: v for row in self.metrics if row["step"] == step for k, v in row.items()}


def read_run(run: Path) -> Left:
    """Read a finished run."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    for row in (*metrics, summary):
        row.pop("time", None)
        row.pop("seconds", None)
    streams = {name: (run / name).read_text() for name in ("trace.jsonl", "samples.jsonl") if (run / name).is_file()}
    newest = max((run / "checkpoints").iterdir())
    files = sorted([*(run / "final").rglob("*.safetensors"), *newest.rglob("*.safetensors")])
    return Left(metrics, summary, streams, {f.relative_to(run).as_posix(): load_file(str(f)) for f in files})


def cut_back(whole: Path, to: int, run: Path) -> None:
    """Copy a run as it was after the checkpoint of a step; its streams hold what came later, as after a kill."""
    shutil.copytree(whole, run)
    shutil.rmtree(run / "final")
    (run / "summary.json").unlink()
    for checkpoint in (run / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("step-")) > to:
            shutil.rmtree(checkpoint)


def computed_once(run: Path) -> dict[str, int]:
    """Files of reference logprobs -> when they were written."""
    files = (run / "reference").rglob("*.safetensors")
    return {f.relative_to(run).as_posix(): f.stat().st_mtime_ns for f in files}


def check_same(a: Left, b: Left) -> None:
    """Fail at the first difference."""
    for part in ("metrics", "summary", "streams"):
        one, two = getattr(a, part), getattr(b, part)
        assert one == two, f"{part}: {first_difference(one, two)}"
    assert a.tensors.keys() == b.tensors.keys()
    for file, one in a.tensors.items():
        two = b.tensors[file]
        assert one.keys() == two.keys(), file
        assert [name for name in one if not one[name].equal(two[name])] == [], file


def first_difference(a: Any, b: Any, at: str = "") -> str:
    """Where two trees differ, and how."""
    if isinstance(a, dict) and isinstance(b, dict):
        return next(
            (first_difference(a.get(k), b.get(k), f"{at}.{k}") for k in {**a, **b} if a.get(k) != b.get(k)),
            "order of keys",
        )
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next(first_difference(x, y, f"{at}[{i}]") for i, (x, y) in enumerate(zip(a, b)) if x != y)
    return f"{at}: {str(a)[:300]} != {str(b)[:300]}"

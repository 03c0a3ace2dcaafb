"""A run in one process reads its files once: what its checks have read is what it trains on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlhf_core
from rlhf_core.data.files import JsonSource, read_rows

SETTINGS = {"eval_samples": 2, "gold_samples": 0, "checkpoint_every": 0, "sampling.max_tokens": 4, "steps": 1}
ROWS = [
    {"prompt": f"{n} + 1?", "answer": str(n + 1), "chosen": str(n + 1), "rejected": "no", "completion": str(n + 1)}
    for n in range(40)
]
READ: list[str] = []


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows for every trainer; whoever reads them is noted."""

    def noted(path: str) -> object:
        READ.append(path)
        return read_rows(path)

    READ.clear()
    monkeypatch.setattr(JsonSource, "read", staticmethod(noted))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def test_a_run_trains_on_the_rows_that_its_checks_have_read(tmp_path: Path, file: Path) -> None:
    settings = {"rollout_batch_size": 4, "group_size": 2, **SETTINGS}
    given = {f"trainer.{key}": value for key, value in settings.items()}
    run = rlhf_core.train(
        "grpo", dataset=str(file), reward="exact", settings=given, run_dir=tmp_path / "run", progress=False
    )
    assert run.status == "completed"
    assert len(READ) == 1
    kept = json.loads((tmp_path / "run" / "rows.json").read_text())
    assert len(kept["train"]) + len(kept["heldout"]) == 40


def test_what_checks_have_read_of_prompts_is_not_counted_among_the_pairs(tmp_path: Path, file: Path) -> None:
    """The verifier's check reads all rows as prompts; of the pairs one is beyond the limit, and counted once."""
    settings = {"max_steps": 1, "batch_size": 2, "sample_prompts": 2, "eval_samples": 2, "checkpoint_every": 0}
    given = {**{f"trainer.{key}": value for key, value in settings.items()}, "dataset.limit": 30}
    run = rlhf_core.train(
        "dpo", dataset=str(file), reward="exact", settings=given, run_dir=tmp_path / "run", progress=False
    )
    beyond = run.summary["dropped"]["rows_beyond_limit"]
    kept = json.loads((tmp_path / "run" / "rows.json").read_text())
    assert beyond + len(kept["train"]) + len(kept["heldout"]) == 40

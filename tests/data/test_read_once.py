"""A run in one process reads its files once: what its checks have read is what it trains on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlhf_core
from rlhf_core.data.files import JsonSource, read_rows

SETTINGS = {"eval_samples": 2, "checkpoint_every": 0}
ONLINE = {"steps": 1, "gold_samples": 0, "rollout_batch_size": 4, "group_size": 2, "sampling.max_tokens": 4}
OFFLINE = {"max_steps": 1, "batch_size": 2, "sample_prompts": 0}


@pytest.mark.parametrize(
    ("algo", "more", "reward"), [("grpo", ONLINE, "exact"), ("sft", OFFLINE, None), ("dpo", OFFLINE, None)]
)
def test_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, more: dict[str, object], reward: str | None
) -> None:
    rows = [
        {"prompt": f"{n} + 1?", "answer": str(n + 1), "completion": str(n + 1), "chosen": str(n + 1), "rejected": "no"}
        for n in range(40)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read: list[str] = []

    def noted(path: str) -> object:
        read.append(path)
        return read_rows(path)

    monkeypatch.setattr(JsonSource, "read", staticmethod(noted))
    settings = {f"trainer.{key}": value for key, value in {**SETTINGS, **more}.items()}
    given = {} if reward is None else {"reward": reward}
    run = rlhf_core.train(algo, dataset=str(file), settings=settings, run_dir=tmp_path / "run", progress=False, **given)
    assert run.status == "completed"
    assert read == [str(file)]
    kept = json.loads((tmp_path / "run" / "rows.json").read_text())
    assert len(kept["train"]) + len(kept["heldout"]) == 40

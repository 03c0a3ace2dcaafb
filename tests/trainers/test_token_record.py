"""What the trace keeps of each token's update; nothing that is trained changes by it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.data.jsonl import read_jsonl

from .conftest import ONLINE, Train, with_trainer


def completions(run: Path) -> list[dict[str, Any]]:
    return [c for row in read_jsonl(run / "trace.jsonl") if row["event"] == "prompt" for c in row["completions"]]


def test_the_trace_keeps_what_the_update_saw_of_each_token(train: Train) -> None:
    settings = {"steps": 1, "eval_samples": 0, "trace_prompts": 1, "kl": {"coefficient": 0.1}}
    train(with_trainer(ONLINE, **settings))
    rows = completions(train.folder / "run")
    updated = [c for c in rows if "entropies" in c]
    traced = [c for c in rows if "completion_ids" in c]
    assert len(traced) == 4
    assert len(updated) in (0, 4), "a group of equal scores is in no update, the others whole"
    for row in updated:
        for key in ("trainer_logprobs", "ref_logprobs", "entropies"):
            assert len(row[key]) == row["tokens"]
        assert row["trainer_logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)
        assert min(row["entropies"]) >= 0
        assert "old_logprobs" not in row, "with one update per rollout batch the ratio is 1"


@pytest.mark.slow
def test_recording_changes_no_weight_and_several_updates_have_a_ratio(train: Train) -> None:
    base = {**with_trainer(ONLINE, steps=1, eval_samples=0), "reward": {"name": "programmatic"}}
    base["dataset"] = {"name": "pocket", "subset": "assistant"}
    digests: set[str] = set()
    for traced in (0, 2):
        train(with_trainer(base, trace_prompts=traced, epochs_per_rollout_batch=2), run=f"run-{traced}")
        weights = train.folder / f"run-{traced}" / "final" / "model.safetensors"
        digests.add(hashlib.sha256(weights.read_bytes()).hexdigest())
    assert len(digests) == 1
    assert not any("trainer_logprobs" in c for c in completions(train.folder / "run-0"))
    rows = [c for c in completions(train.folder / "run-2") if "completion_ids" in c]
    assert len(rows) == 8
    trained = [row for row in rows if "old_logprobs" in row]
    moved = [np.abs(np.subtract(row["trainer_logprobs"], row["old_logprobs"])).max() for row in trained]
    assert max(moved) > 1e-4, "the second epoch's policy is another one"

"""A reference policy that is renewed every N steps."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.data.jsonl import read_jsonl

from .conftest import ONLINE, Train

FAST = {"steps": 5, "rollout_batch_size": 32, "eval_samples": 0, "optimizer": {"learning_rate": 3e-3}}


def steps(train: Train, run: str) -> list[dict[str, Any]]:
    rows = [r for r in read_jsonl(train.folder / run / "metrics.jsonl") if "kl" in r]
    return [{k: v for k, v in r.items() if k != "time"} for r in rows]


def settings(**kl: Any) -> dict[str, Any]:
    return {"trainer": {**FAST, "kl": kl}}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loss", "reward"])
def test_kl_is_that_to_the_policy_of_the_last_sync(train: Train, where: str) -> None:
    train(ONLINE, change=settings(coefficient=0.05, where=where, sync_every=2), run="synced")
    train(ONLINE, change=settings(coefficient=0.05, where=where), run="fixed")
    synced, fixed = steps(train, "synced"), steps(train, "fixed")
    assert [r.get("reference_synced", 0) for r in synced] == [0, 1, 0, 1, 0]
    assert [r["kl"] < 1e-5 for r in synced] == [True, False, True, False, True], "just renewed: no distance"
    assert [r["kl"] < 1e-5 for r in fixed] == [True, False, False, False, False]
    assert synced[:2] == [{**r, **({"reference_synced": 1.0} if r["step"] == 2 else {})} for r in fixed[:2]]
    copies = [list((train.folder / run / "checkpoints").glob("*/reference.safetensors")) for run in ("synced", "fixed")]
    assert copies[0]
    assert not copies[1], "a run that never syncs keeps no copy"

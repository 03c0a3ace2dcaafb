"""Each rank is sent the samples that it trains on, and no others; the update is that of one process."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_core.strategy.local import LocalStrategy

from . import traffic

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


class Alone(LocalStrategy):
    """One process."""

    def release(self, module: torch.nn.Module) -> None:
        """It keeps nothing."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks wrote."""
    out = tmp_path_factory.mktemp("traffic") / "found.json"
    script = str(Path(traffic.__file__))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*TORCHRUN, script, str(out)], env=env, check=True, timeout=250)
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", traffic.CASES)
def test_a_rank_is_sent_what_it_trains_on(case: str, found: dict[str, Any]) -> None:
    ranks = found[case]["ranks"]
    assert [list(update) for update in zip(*(rank["ran"] for rank in ranks))] == traffic.shares(case, 2)
    for n, rank in enumerate(ranks):
        needed, every = traffic.moved(case, n)
        assert rank["received"] <= needed + rank["facts"], f"rank {n}, of {every} bytes that the other has"
    whole = traffic.update(Alone(), case)
    assert float((torch.tensor(found[case]["weights"]) - whole["weights"]).abs().max()) < 1e-6
    assert ranks[0]["metrics"] == ranks[1]["metrics"] == pytest.approx(whole["metrics"], abs=1e-5)


@pytest.mark.slow
def test_rank_0_estimates_advantages_for_all(found: dict[str, Any]) -> None:
    zero, one = found["estimates"]
    estimator = traffic.Shifting()
    traffic.advantages(LocalStrategy(), [1.0, 2.0, 3.0], estimator)
    whole, scores = traffic.advantages(LocalStrategy(), [1.0, 2.0, 3.0], estimator)
    assert zero["values"] == whole.values
    assert one["values"] == list(whole.values)[4:]
    assert zero["scores"] == one["scores"] == scores
    assert zero["metrics"] == one["metrics"] == {"seen": 6.0}
    assert zero["calls"] == one["calls"] == 2, "the others take over the state"
    assert "no advantage" in zero["error"]
    assert zero["error"].startswith("ComponentError: ")
    assert one["error"].startswith("OtherRankFailed: rank 0 failed: ComponentError: ")
    rollouts = [group.rollouts for group in traffic.rollout_groups([1.0, 2.0, 3.0])]
    assert one["received"] < len(pickle.dumps(rollouts[:2])), "no rollout of rank 0 comes with it"


@pytest.mark.slow
def test_completions_go_to_those_that_train_on_them_or_trace_them(found: dict[str, Any]) -> None:
    zero, one = found["completions"]
    drawn = zero["drawn"]
    assert zero["ids"] == [*drawn[:3], *drawn[5:]]
    assert one["ids"] == [*drawn[3:5], [], []]

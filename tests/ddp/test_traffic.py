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
from safetensors.torch import load_file

from rlhf_core.distributed.group import LocalStrategy

from . import traffic, traffic_of_runs
from .test_runs_on_two_ranks import rows, weights

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
    found = json.loads(out.read_text())
    for case, values in load_file(out.with_suffix(".safetensors")).items():
        found[case]["weights"] = values
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of ``traffic_of_runs.py``, which two ranks made."""
    folder = tmp_path_factory.mktemp("runs")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["-m", traffic_of_runs.__name__, str(folder)]
    subprocess.run([*TORCHRUN, *words], env=env, check=True, timeout=250, cwd=Path(__file__).parents[2])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", traffic_of_runs.RUNS)
def test_of_pairs_and_held_out_completions_a_rank_is_sent_its_own(name: str, runs: Path, tmp_path: Path) -> None:
    zero, one = (json.loads((runs / f"rank-{rank}.json").read_text())[name] for rank in range(2))
    of_zero, of_one = ({kind: [n for k, n in rank["received"] if k == kind] for kind in KINDS} for rank in (zero, one))
    assert of_one["completions"] == []
    assert len(of_zero["completions"]) == len(one["sampled"]), "rank 0 is sent each batch once"
    if name == "sft":
        assert max(of_one[""]) < min(zero["sampled"]), "no texts either"
    if name == "frozen trunk":
        features = traffic_of_runs.FEATURES
        assert features < sum(of_one["tensors"]) < 1.1 * features, "each once, without its conversation"
    if name == "iterative_dpo":
        batches = of_one["pairs"][: len(one["trained"])]  # then the pairs of earlier iterations, to see their margins
        assert sum(batches) < sum(one["trained"]) + 100 * len(batches)
    if name == "grpo":
        assert sum(of_zero["completions"]) < sum(one["sampled"]) / 2, "no text and no token: rank 1 traces its own"
    traffic_of_runs.train(traffic_of_runs.RUNS[name], tmp_path / "one", 1)
    check_equal(tmp_path / "one", runs / name)


KINDS = ("completions", "pairs", "tensors", "")


def check_equal(one: Path, two: Path) -> None:
    """The same examples and completions, metrics and weights to rounding."""
    for samples in one.glob("samples.jsonl"):
        assert samples.read_text() == (two / "samples.jsonl").read_text()
    assert examples(one) == examples(two)
    for a, b in zip(rows(one), rows(two), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-4), a["step"]
    first, second = weights(one), weights(two)
    assert max(float((first[k] - second[k]).abs().max()) for k in first) < 1e-6


def examples(run: Path) -> list[Any]:
    """What the trace says of pairs, prompts and examples; of completions the text and what else is there."""
    traced = map(json.loads, (run / "trace.jsonl").read_text().splitlines())
    return [
        (row.get("names") or row.get("examples") or row.get("prompt_id"), [(c["text"], *c) for c in row["completions"]])
        if "completions" in row
        else row.get("names") or row.get("examples") or row.get("event")
        for row in traced
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", traffic.CASES)
def test_a_rank_is_sent_what_it_trains_on(case: str, found: dict[str, Any]) -> None:
    ranks = found[case]["ranks"]
    assert [list(update) for update in zip(*(rank["ran"] for rank in ranks))] == traffic.shares(case, 2)
    for n, rank in enumerate(ranks):
        needed, every = traffic.moved(case, n)
        assert rank["received"] <= needed + rank["facts"], f"rank {n}, of {every} bytes that the other has"
    whole = traffic.update(Alone(), case)
    assert float((found[case]["weights"] - whole["weights"]).abs().max()) < 1e-6
    assert ranks[0]["metrics"] == ranks[1]["metrics"] == pytest.approx(whole["metrics"], rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_rank_0_estimates_advantages_for_all(found: dict[str, Any]) -> None:
    zero, one = found["estimates"]
    estimator = traffic.Shifting()
    traffic.advantages(LocalStrategy(), [1.0, 2.0, 3.0], estimator)
    whole, scores = traffic.advantages(LocalStrategy(), [1.0, 2.0, 3.0], estimator)
    assert zero["values"] == list(whole.values)[:4]
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
@pytest.mark.parametrize("name", ["GroupNorm", "OptimalBaseline"])
def test_each_rank_estimates_its_own_groups_as_rank_0_does(name: str, found: dict[str, Any]) -> None:
    ranks = found["by group"]
    for rank in ranks:
        assert rank[f"{name}, own"] == rank[f"{name}, rank 0"]
    whole = json.loads(json.dumps(traffic.by_group(LocalStrategy(), [1.0, 2.0, 3.0])))[f"{name}, rank 0"]
    assert [value for rank in ranks for value in rank[f"{name}, own"][0]] == whole[0]
    assert ranks[0][f"{name}, own"][2] == whole[2] == {"constant_groups": 1, "unscored_groups": 0}


@pytest.mark.slow
def test_completions_go_to_those_that_train_on_them_or_trace_them(found: dict[str, Any]) -> None:
    zero, one = found["completions"]
    drawn = zero["drawn"]
    assert zero["ids"] == [*drawn[:3], *drawn[5:]]
    assert one["ids"] == [*drawn[3:5], [], []]

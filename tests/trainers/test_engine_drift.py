"""An engine that parts from the trainer in any step is named, with the likely cause; a gross one ends the run."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.training.learner import core_metrics
from rlhf_core.training.weight_sync import BEYOND_ROUNDING, GROSS, TOLERANCE, Drift, DriftCheck, drift_bound
from rlhf_core.types.batches import TokenBatch
from rlhf_core.types.errors import RlhfError
from rlhf_plugin_native.engine import NativeEngine

from .conftest import ONLINE, Train


class ColderEngine(NativeEngine):
    """Samples at half the temperature that it is asked for, as a server might; reports what it sampled from."""

    def generate(self, requests: Any, sampling: Any, policy_version: int) -> Any:
        return super().generate(requests, replace(sampling, temperature=sampling.temperature / 2), policy_version)


class ColderConfig(ComponentConfig):
    name: str = "colder"

    def build(self, ctx: BuildContext) -> NativeEngine:
        return ColderEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context)


class UnsyncedConfig(ComponentConfig):
    """The native engine on a copy of the policy that never gets its weights."""

    name: str = "unsynced"

    def build(self, ctx: BuildContext) -> NativeEngine:
        return NativeEngine(copy.deepcopy(ctx.policy.model), ctx.policy.tokenizer, ctx.policy.context)


COMPONENTS = {
    ("rollout", "unsynced"): f"{__name__}:UnsyncedConfig",
    ("rollout", "colder"): f"{__name__}:ColderConfig",
}
FAST = {"eval_samples": 0, "steps": 4, "gold_samples": 0, "optimizer": {"learning_rate": 0.003, "warmup_steps": 0}}


def test_weights_that_never_sync_are_named(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rlhf"):
        summary = train(
            ONLINE, change={"trainer": {**FAST, "drift_check": "warn"}, "rollout": "unsynced"}, components=COMPONENTS
        )
    said = [r.getMessage() for r in caplog.records if "logprobs differ" in r.getMessage()]
    assert said[0].startswith(("step 2: ", "step 3: ")), "the first after an update"
    assert "still samples from older weights" in said[0]
    assert summary["dropped"]["drift_warnings"] == len(said)
    steps = [r for r in read_jsonl(train.folder / "run" / "metrics.jsonl") if "drift/mean_abs" in r]
    assert steps[0]["drift/mean_abs"] < 1e-4 < 0.02 < steps[-1]["drift/mean_abs"]
    assert not [name for row in steps for name in row if name.startswith("_")], "sums are no metrics"


def test_gross_drift_ends_the_run_by_default(train: Train) -> None:
    change = {"trainer": {**FAST, "optimizer": {"learning_rate": 0.05}}, "rollout": "unsynced"}
    with pytest.raises(RlhfError, match=r"step \d: the rollout engine's logprobs are [\s\S]* older weights"):
        train(ONLINE, change=change, components=COMPONENTS)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.3])
def test_an_engine_at_half_the_temperature_ends_the_run_by_default(train: Train, temperature: float) -> None:
    change = {"trainer": {**FAST, "sampling": {"temperature": temperature}}, "rollout": "colder"}
    change["dataset"] = {"name": "pocket", "subset": "arithmetic", "limit": None}
    with pytest.raises(
        RlhfError, match=r"step \d: the rollout engine's logprobs are [\s\S]*another sampling temperature"
    ):
        train(ONLINE, change=change, components=COMPONENTS)


@pytest.mark.parametrize(
    ("policy", "engine", "corrected", "bound"),
    [
        (torch.float32, "", False, TOLERANCE),
        (torch.float32, "float32", False, TOLERANCE),
        (torch.float32, torch.float32, False, TOLERANCE),
        (torch.float32, "bfloat16", False, BEYOND_ROUNDING),
        (torch.bfloat16, "", False, BEYOND_ROUNDING),
        (torch.bfloat16, "float32", False, BEYOND_ROUNDING),
        (torch.float32, "", True, GROSS),
    ],
)
def test_the_bound_is_what_rounding_cannot_reach(policy: Any, engine: Any, corrected: bool, bound: float) -> None:
    model = torch.nn.Linear(2, 2, dtype=policy)
    sampler = SimpleNamespace(dtype=engine) if engine else SimpleNamespace()
    assert drift_bound(sampler, model, corrected=corrected) == bound
    with pytest.raises(RlhfError, match=rf"more than {bound:g} is not rounding"):
        DriftCheck("stop", Counter(), bound)(1, Drift(1.5 * bound, 0.05 * bound))
    DriftCheck("stop", Counter(), bound)(1, Drift(0.9 * bound, 0.0))


def sums(gaps: list[list[float]]) -> dict[str, Any]:
    width = max(map(len, gaps))
    grid = torch.tensor([g + [0.0] * (width - len(g)) for g in gaps])
    mask = torch.arange(width)[None] < torch.tensor([len(g) for g in gaps])[:, None]
    zeros = torch.zeros_like(grid)
    return core_metrics(TokenBatch(zeros, mask, zeros, zeros, behaviour_logprobs_BT=grid))


def test_the_error_is_that_of_a_mean_over_whole_sequences() -> None:
    """Against a simulation: sequences whose tokens all share one offset."""
    rng = np.random.default_rng(0)
    means, errors = [], []
    for _ in range(400):
        batch = [[float(abs(rng.normal(0.1, 0.03)))] * int(rng.integers(1, 9)) for _ in range(32)]
        drift = Drift.of(sums(batch))
        assert drift is not None
        means.append(drift.mean)
        errors.append(drift.error)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.15)


def check(*drifts: Drift, action: Any = "stop", staleness: int = 0) -> int:
    counts = Counter[str]()
    judge = DriftCheck(action, counts)
    for step, drift in enumerate(drifts):
        judge(step + 1, drift, staleness)
    return counts["drift_warnings"]


@pytest.mark.parametrize(
    ("drifts", "warnings"),
    [
        ([(1e-5, 0), (1e-5, 0), (9e-4, 0)], 0),
        ([(1e-5, 0), (5e-3, 1e-4)], 1),
        ([(0.008, 1e-4), (0.019, 1e-4)], 0),
        ([(0.008, 1e-4), (0.03, 1e-4)], 1),
        ([(0.008, 1e-4), (0.03, 0.01)], 0),
        ([(0.04, 1e-3)] * 5, 1),
        ([(0.04, 1e-3), (0.07, 1e-3), (0.09, 1e-3), (0.2, 1e-3)], 3),
    ],
)
def test_limits(drifts: list[tuple[float, float]], warnings: int) -> None:
    """float32 starts near 0 and has to stay there, bfloat16 has the tolerance; what chance explains is nothing."""
    assert check(*(Drift(*d) for d in drifts)) == warnings
    assert check(*(Drift(*d) for d in drifts), action="off") == 0


def test_the_first_batch_names_the_settings_that_may_differ(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rlhf"):
        check(Drift(0.3, 0.01))
    assert "on the first batch" in caplog.text
    assert "another sampling temperature" in caplog.text


def test_what_is_gross() -> None:
    with pytest.raises(RlhfError, match=r"0\.9 nats[\s\S]*drift_check=warn"):
        check(Drift(0.9, 0.01))
    assert check(Drift(0.9, 0.01), action="warn") == 1
    assert check(Drift(0.9, 0.2)) == 1, "chance"
    assert check(Drift(0.3, 0.01), staleness=2) == 0, "older policies differ"
    assert check(Drift(0.9, 0.01), staleness=2) == 1


def test_state_goes_with_a_checkpoint() -> None:
    judge, again = DriftCheck("stop", Counter()), DriftCheck("stop", counts := Counter[str]())
    judge(1, Drift(1e-5, 0))
    again.load_state_dict(judge.state_dict())
    again(2, Drift(0.01, 1e-4))
    assert counts["drift_warnings"] == 1

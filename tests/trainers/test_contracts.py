"""A component that returns the wrong thing is named, with what it returned and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from rlhf_core.config import ComponentConfig, PluginError
from rlhf_core.losses import Advantages, LossOutput, TokenBatch
from rlhf_core.plugins.contracts import CheckedEngine, check_advantages, check_rollouts, score_samples
from rlhf_core.plugins.protocols import ReportsProgress
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import Rollout
from rlhf_core.types.rollouts import FinishReason, Prompt, RolloutRequest, SamplingParams

from .conftest import ONLINE, Train

SAMPLES = [Sample(Prompt(f"p{i}", ({"role": "user", "content": "?"},)), "x") for i in range(3)]
REQUESTS = [RolloutRequest(f"p{i // 2}", (1, i // 2), i % 2, i) for i in range(4)]
Change = Callable[[list[Any]], Any]


def play(requests: Sequence[RolloutRequest]) -> list[Rollout]:
    return [
        Rollout(
            r.prompt_id,
            r.group_index,
            r.prompt_ids,
            (5, 6, 7),
            np.full(3, -1.0, np.float32),
            0,
            FinishReason.EOS,
            "x",
            r.seed,
        )
        for r in requests
    ]


class Odd(ComponentConfig):
    """Builds a component that does one thing wrong."""

    name: str = "odd"
    min_group_size: ClassVar[int] = 2
    consumes: ClassVar[str | None] = None

    def build(self, ctx: Any) -> OddOne:
        from rlhf_plugin_native.config import NativeRolloutConfig

        return OddOne(NativeRolloutConfig().build(ctx))


class OddOne:
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def score(self, samples: Sequence[Sample]) -> Any:
        return [len(s.completion) for s in samples]

    def estimate(self, rollouts: Any, scores: Any, group_ids: Any) -> Advantages:
        return Advantages([0.5] * (len(rollouts) - 1))

    def generate(self, requests: Any, sampling: Any, policy_version: int) -> list[Rollout]:
        return self.engine.generate(requests, sampling, policy_version)[::-1]

    def __call__(self, batch: TokenBatch) -> LossOutput:
        return LossOutput(batch.logprobs_BT.mean(-1, keepdim=True))

    def play(self, groups: Any, seeds: Any, engine: Any, sampling: Any, policy_version: int) -> list[Rollout]:
        requests = [
            RolloutRequest(g.prompt.id, g.token_ids, i, s) for g, row in zip(groups, seeds) for i, s in enumerate(row)
        ]
        return engine.generate(requests, sampling, policy_version)[1:]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("reward", r"returned int \d+ for 'pocket/arithmetic"),
        ("advantage", "returned 7 advantages for 8 rollouts"),
        ("rollout", "returned the rollout of .* in the place of"),
        ("agent", "returned 3 rollouts for 4 requests"),
        ("loss", r"returned a loss of shape \(8, 1\)"),
    ],
)
def test_a_run_names_the_plugin(train: Train, kind: str, said: str) -> None:
    with pytest.raises(PluginError, match=rf"{kind} 'odd' \(pytest {pytest.__version__}\) {said}"):
        train({**ONLINE, kind: {"name": "odd"}}, components={(kind, "odd"): f"{__name__}:Odd"})


@pytest.mark.parametrize(
    ("change", "said", "expected"),
    [
        (lambda s: s[1:], "2 scores for 3 samples", "one Score per sample"),
        (lambda s: None, "returned None", "a list of 3 Scores"),
        (lambda s: [*s[:2], 0.5], "float 0.5 for 'p2'", "a Score"),
        (lambda s: (v for v in [*s, s[0]]), "4 scores for 3 samples", "one Score per sample"),
    ],
)
def test_scores(change: Change, said: str, expected: str) -> None:
    class Judge:
        def score(self, samples: Sequence[Sample]) -> Any:
            return change([Score(1.0) for _ in samples])

    with pytest.raises(PluginError) as caught:
        score_samples(Judge(), SAMPLES, "reward 'judge' (acme 1.0)")
    assert f"reward 'judge' (acme 1.0) returned {said.removeprefix('returned ')}" in str(caught.value)
    assert f"why: expected {expected}" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0, None, 2.0], "3 advantages for 4"),
        ([1.0, None, 2.0, float("nan")], "nan for p1#1"),
        ([1.0, np.zeros(2, np.float32), None, None], r"shape \(2,\) for p0#1"),
        ([1.0, "high", None, None], "'high' for"),
        ([[1.0, 2.0, float("inf")], None, None, None], "inf"),
    ],
)
def test_advantages(values: list[Any], said: str) -> None:
    with pytest.raises(PluginError, match=rf"(?s)estimator returned .*{said}"):
        check_advantages(Advantages(values), play(REQUESTS), "estimator")
    with pytest.raises(PluginError, match="expected an Advantages"):
        check_advantages(values, play(REQUESTS), "estimator")


def test_advantages_that_are_right() -> None:
    values = [1.0, None, np.zeros(3, np.float32), np.float64(2)]
    assert check_advantages(Advantages(values), play(REQUESTS), "estimator").values is values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r[:3], "3 rollouts for 4 requests"),
        (lambda r: None, "NoneType None for 4"),
        (lambda r: [r[1], r[0], *r[2:]], "the rollout of p0#1 in the place of p0#0"),
        (lambda r: [*r[:3], "text"], "str 'text' for p1#1"),
        (lambda r: [replace(r[0], logprobs_T=np.array([-1, np.nan, -1], np.float32)), *r[1:]], "logprobs array.* p0#0"),
        (lambda r: [replace(r[0], logprobs_T=None), *r[1:]], r"rollout p0#0: 3 tokens but logprobs of shape \(\)"),
        (lambda r: [replace(r[0], logprobs_T=np.zeros((3, 1))), *r[1:]], r"3 tokens but logprobs of shape \(3, 1\)"),
        (lambda r: [replace(r[0], prompt_ids=(9,)), *r[1:]], "p0#0 with other prompt tokens"),
    ],
)
def test_rollouts(change: Change, said: str) -> None:
    class Engine:
        def generate(self, requests: Any, sampling: Any, policy_version: int) -> Any:
            return change(play(requests))

    validated = CheckedEngine(Engine(), "rollout 'x' (acme 1.0)")
    with pytest.raises(PluginError, match=rf"(?s)rollout 'x' \(acme 1.0\) returned .*{said}"):
        validated.generate(REQUESTS, SamplingParams(), 0)


def test_rollouts_that_are_right() -> None:
    made = play(REQUESTS)
    assert check_rollouts(made, [(r.prompt_id, r.group_index) for r in REQUESTS], "engine") == made


class Reports:
    """An engine that says after each call how many completions have ended."""

    on_ended: Any = None

    def generate(self, requests: Any, sampling: Any, policy_version: int) -> Any:
        if self.on_ended is not None:
            self.on_ended(len(requests))
        return play(requests)


def test_an_engine_reports_its_progress_inside_of_the_context_alone() -> None:
    engine, ended = Reports(), list[int]()
    checked = CheckedEngine(engine)
    assert isinstance(checked, ReportsProgress), "what an agent is given"
    checked.generate(REQUESTS, SamplingParams(), 0)
    with checked.reporting(ended.append):
        checked.generate(REQUESTS, SamplingParams(), 0)
        checked.on_ended(1)  # type: ignore[misc]  # as an agent does, for an episode
    checked.generate(REQUESTS, SamplingParams(), 0)
    assert ended == [len(REQUESTS), 1]
    with pytest.raises(KeyError), checked.reporting(ended.append):
        raise KeyError
    assert (engine.on_ended, checked.on_ended) == (None, None)


def test_an_engine_that_does_not_report_is_left_as_it_is() -> None:
    class Engine:
        __slots__ = ()

        def generate(self, requests: Any, sampling: Any, policy_version: int) -> Any:
            return play(requests)

    checked = CheckedEngine(Engine())
    with checked.reporting(lambda count: None):
        assert len(checked.generate(REQUESTS, SamplingParams(), 0)) == len(REQUESTS)

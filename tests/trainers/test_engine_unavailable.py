"""An engine that has nothing left to sample with: the run saves its last whole step, which it can be resumed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.rollouts import EngineUnavailable, Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine

from .conftest import ONLINE, Train, largest_difference, with_trainer

GONE = {"after": 10**9}
"""Calls until the engine is gone."""
BASE = with_trainer(ONLINE, steps=4, eval_samples=0, checkpoint_every=0)


class GoneConfig(ComponentConfig):
    """The native engine, until it is gone."""

    name: str = "gone"

    def build(self, ctx: BuildContext) -> Gone:
        return Gone(NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context))


class Gone:
    def __init__(self, engine: NativeEngine) -> None:
        self.engine, self.calls = engine, 0

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        self.calls += 1
        if self.calls > GONE["after"]:
            raise EngineUnavailable("no server is left", fix="start one")
        return self.engine.generate(requests, sampling, policy_version)


COMPONENTS = {("rollout", "gone"): f"{__name__}:GoneConfig"}


def run_until_gone(train: Train, monkeypatch: pytest.MonkeyPatch, after: int, base: Any = BASE) -> str:
    """The message of a run whose engine goes, and then comes back."""
    with monkeypatch.context() as patched:
        patched.setitem(GONE, "after", after)
        with pytest.raises(EngineUnavailable) as caught:
            train(base, change={"rollout": "gone"}, components=COMPONENTS)
    assert caught.value.exit_code == 1
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [{}, {"dynamic_sampling": {"max_rounds": 1}}], ids=["plain", "dynamic sampling"])
def test_the_last_whole_step_is_saved_and_resumed_to_the_same_weights(
    train: Train, monkeypatch: pytest.MonkeyPatch, trainer: Any
) -> None:
    base = with_trainer(BASE, **trainer)
    text = run_until_gone(train, monkeypatch, 2, base)
    assert "no server is left; everything up to step 2 is saved" in text
    assert "start one; " in text
    assert [p.name for p in (train.folder / "run" / "checkpoints").iterdir()] == ["step-000002"]
    train(BASE, components=COMPONENTS, resume=True)
    train(base, change={"rollout": "gone"}, components=COMPONENTS, run="undisturbed")
    assert largest_difference(train.folder / "run", train.folder / "undisturbed") == 0


def test_an_evaluation_without_engine_saves_the_step_that_it_follows(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = with_trainer(BASE, eval_samples=2, eval_every=3)  # before the first step, after step 3, at the end
    assert "everything up to step 3 is saved" in run_until_gone(train, monkeypatch, 4, base)


def test_batches_sampled_ahead_are_not_saved_since_their_weights_are_in_no_checkpoint(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = run_until_gone(train, monkeypatch, 2, with_trainer(BASE, rollouts={"max_staleness": 1}))
    assert "is saved" not in text
    assert not list((train.folder / "run" / "checkpoints").iterdir())

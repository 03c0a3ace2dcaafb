"""The policy's weights reach an engine that keeps its own, once for each version."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.training.weight_sync import SamplerPolicy, WeightSync, trained_names
from rlhf_plugin_native.engine import NativeEngine

from .conftest import ONLINE, Train


class EngineWithWeights:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.weights: dict[str, torch.Tensor] = {}

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.versions.append(version)
        self.weights = dict(tensors)


def policy() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    model[1].requires_grad_(False)
    return model


def test_an_engine_that_keeps_weights_gets_each_version_once() -> None:
    model, engine = policy(), EngineWithWeights()
    weight_sync = WeightSync(model, nullcontext, None, engine, trained_names(model))
    weight_sync.sync(0)
    weight_sync.release_memory()  # which this engine does not offer
    weight_sync.sync(0)
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert torch.equal(engine.weights["0.weight"], before), "a copy, not the weights that learn"
    weight_sync.sync(1)
    assert engine.versions == [0, 1]
    assert set(engine.weights) == {"0.weight", "0.bias"}, "what is not trained stays where it is"
    assert torch.equal(engine.weights["0.weight"], before + 1.0)


def test_a_copy_of_the_policy_follows_it() -> None:
    model: Any = policy()
    sampler = SamplerPolicy(model)
    weight_sync = WeightSync(model, nullcontext, sampler, object(), trained_names(model))
    with torch.no_grad():
        model[0].weight.add_(1.0)
    weights = weight_sync.snapshot(1)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    weight_sync.load(1, weights)
    assert torch.allclose(sampler.model[0].weight, model[0].weight - 1.0)
    weight_sync.sync(2)
    assert torch.equal(sampler.model[0].weight, model[0].weight)


def test_an_engine_over_the_policy_itself_needs_nothing() -> None:
    def never() -> Any:
        raise AssertionError("weights were gathered")

    WeightSync(policy(), never, None, object(), []).sync(0)


def test_weights_that_an_engine_gave_up_are_sent_again_though_the_version_is_the_same() -> None:
    model, engine = policy(), EngineWithWeights()
    engine.release_memory = lambda: True  # type: ignore[attr-defined]
    weight_sync = WeightSync(model, nullcontext, None, engine, trained_names(model))
    weight_sync.sync(0)
    weight_sync.release_memory()
    weight_sync.sync(0)
    assert engine.versions == [0, 0]


RELEASED: list[int] = []
"""Versions after which memory was given back."""


class OwnWeightsConfig(ComponentConfig):
    """An engine in another place: the native one over weights that only ``update_weights`` changes."""

    name: str = "own_weights"
    component: ClassVar[str] = f"{__name__}:OwnWeights"


class OwnWeights:
    """Keeps no weights while the policy is updated."""

    version = -1

    def __init__(self, config: OwnWeightsConfig, ctx: BuildContext) -> None:
        self.model = copy.deepcopy(ctx.policy.model)
        self.engine = NativeEngine(self.model, ctx.policy.tokenizer, ctx.policy.context)

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.model.load_state_dict(dict(tensors), strict=False)
        self.version = version

    def generate(self, *request: Any) -> Any:
        return self.engine.generate(*request)

    @torch.no_grad()
    def release_memory(self) -> bool:
        RELEASED.append(self.version)
        for parameter in self.model.parameters():
            parameter.fill_(torch.nan)
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "released"), [(0, [0, 1, 2]), (1, [])])
def test_an_engine_with_weights_needs_no_copy_and_gives_memory_back_unless_it_samples_ahead(
    train: Train, monkeypatch: pytest.MonkeyPatch, staleness: int, released: list[int]
) -> None:
    RELEASED.clear()
    trainer = {"steps": 3, "eval_samples": 2, "rollouts": {"max_staleness": staleness}}
    train(ONLINE, change={"trainer": trainer}, run="native")
    monkeypatch.delattr("rlhf_core.training.weight_sync.SamplerPolicy.__init__")
    components = {("rollout", "own_weights"): f"{__name__}:OwnWeightsConfig"}
    train(ONLINE, change={"trainer": trainer, "rollout": "own_weights"}, components=components, run="own")
    assert released == RELEASED
    native, own = (load_file(train.folder / run / "final" / "model.safetensors") for run in ("native", "own"))
    assert all(native[name].equal(own[name]) for name in native)

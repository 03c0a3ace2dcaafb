"""The policy's weights reach an engine that keeps its own, once for each version."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from rlhf_core.models.sampler_policy import SamplerPolicy, trained_names
from rlhf_core.trainers.online.weight_sync import WeightSync


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
    assert weight_sync.needed
    weight_sync.sync(0)
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
    weights = weight_sync.snapshot()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    weight_sync.load(1, weights)
    assert torch.allclose(sampler.model[0].weight, model[0].weight - 1.0)
    weight_sync.sync(2)
    assert torch.equal(sampler.model[0].weight, model[0].weight)


def test_an_engine_over_the_policy_itself_needs_nothing() -> None:
    assert not WeightSync(policy(), nullcontext, None, object(), []).needed

"""Conformance of strategies, on one process."""

from __future__ import annotations

import gc
import math
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlhf_core.config import BuildContext, ComponentConfig, RlhfError
from rlhf_core.distributed.checked import checked_strategy
from rlhf_core.distributed.optimizer import prepare_training
from rlhf_core.distributed.whole_weights import ShardedWeights, gather_weights
from rlhf_core.models.tensor_files import like
from rlhf_core.plugins.strategy_protocols import ModuleRelease, OptimizerOwner, TensorGathering
from rlhf_testing.config import check_config
from rlhf_testing.report import require
from rlhf_testing.samples import make_context
from rlhf_testing.strategy_optimizer import check_own_optimizer, whole
from rlhf_testing.strategy_parts import (
    PolicyAndCritic,
    check_forwards,
    check_group,
    check_loading,
    check_lone_work,
    plan,
)


def check_strategy(config: ComponentConfig, ctx: BuildContext | None = None) -> None:
    """Check a strategy on one process: it has every method; gradients of micro-batches add up to the plain ones and
    are never enlarged; values over ranks are the rank's own; weights and optimizer state survive saving. One that makes
    the optimizer itself makes AdamW's steps, clips part by part, and leaves a step out whose norm is not finite.

    Besides, of what it has: forwards on shards, weights read after ``prepare``, collectives of a second thread, work of
    rank 0 alone. :func:`check_strategy_on_ranks` checks several ranks.
    """
    check_config(config, "strategy")
    ctx = ctx or make_context(config=None)
    strategy: Any = config.build(ctx)
    try:
        checked_strategy(strategy, f"strategy '{config.name}'", 1)
        check_ranks(config, strategy)
        makes_optimizer: bool = issubclass(type(strategy), OptimizerOwner)
        if makes_optimizer:
            check_own_optimizer(config, strategy)
        module = plain_module()
        prepared = strategy.prepare(module)
        check_gradients(config, strategy, prepared)
        check_states(config, strategy, prepared)
        if issubclass(type(strategy), ModuleRelease):
            check_release(config, strategy)
        check_parts(config, strategy)
    except RlhfError as error:
        require(False, config, "a strategy keeps its contract", str(error))
    finally:
        if callable(close := getattr(strategy, "close", None)):
            close()


def check_parts(config: ComponentConfig, strategy: Any) -> None:
    """What it may have besides."""
    module, _ = prepare_training(strategy, PolicyAndCritic(), plan())
    check_forwards(config, strategy, module)
    check_loading(config, strategy)
    check_group(config, strategy)
    with tempfile.TemporaryDirectory() as folder:
        check_lone_work(config, strategy, Path(folder))


def plain_module() -> torch.nn.Module:
    """The same small network every time."""
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def check_ranks(config: ComponentConfig, strategy: Any) -> None:
    """Exchanges with nobody."""
    rows = {
        "sum_over_ranks([1.5, 2.0])": (strategy.sum_over_ranks([1.5, 2.0]), [1.5, 2.0]),
        "max_over_ranks(3)": (strategy.max_over_ranks(3), 3),
        "gather_objects({'a': 1})": (strategy.gather_objects({"a": 1}), [{"a": 1}]),
        "exchange_objects([{'a': 1}])": (strategy.exchange_objects([{"a": 1}]), [{"a": 1}]),
    }
    strategy.barrier("the conformance kit")
    for call, (answer, expected) in rows.items():
        require(answer == expected, config, f"on one process {call} is {expected}", repr(answer))


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    """Copies, on the CPU."""
    return [whole(p.grad.detach()).cpu().clone() for p in module.parameters() if p.grad is not None]


def check_gradients(config: ComponentConfig, strategy: Any, prepared: torch.nn.Module) -> None:
    """Two micro-batches against one plain backward; then clipping."""
    inputs_N3 = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    reference = plain_module()
    (reference(inputs_N3).square().sum() / 6).backward()
    for n, part in enumerate(inputs_N3.split(3)):
        with strategy.accumulate(prepared, last=n == 1):
            strategy.backward(prepared(part.to(strategy.device)).square().sum() / 6)
    own, plain = gradients(strategy.unwrap(prepared)), gradients(reference)
    close = len(own) == len(plain) and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(own, plain))
    rule = "gradients of micro-batches add up to those of the whole batch"
    seen = f"{[g.flatten()[:2].tolist() for g in own]} instead of {[g.flatten()[:2].tolist() for g in plain]}"
    require(close, config, rule, seen, "backward() sums; the loss carries the denominator already")
    norm = math.sqrt(sum(float(g.square().sum()) for g in plain))
    returned = strategy.clip_grad_norm(prepared, norm / 10)
    rule = "clip_grad_norm() returns the norm before clipping"
    require(math.isclose(returned, norm, rel_tol=1e-4), config, rule, f"{returned} instead of {norm}")
    clipped = gradients(strategy.unwrap(prepared))
    grown = [i for i, (a, b) in enumerate(zip(clipped, own)) if float(a.norm()) > float(b.norm()) + 1e-6]
    smaller = sum(float(g.square().sum()) for g in clipped) < 0.9 * norm**2
    require(not grown and smaller, config, "clip_grad_norm() makes gradients smaller", f"larger: {grown}")


def check_states(config: ComponentConfig, strategy: Any, prepared: torch.nn.Module) -> None:
    """Whole weights, and an optimizer's state that is saved and restored."""
    inner = strategy.unwrap(prepared)
    weights = {name: p.detach().cpu() for name, p in plain_module().state_dict().items()}
    with strategy.gathered(prepared):
        state = {name: t.detach().cpu() for name, t in strategy.full_state(inner).items()}
    same = state.keys() == weights.keys() and all(torch.equal(state[k], weights[k]) for k in weights)
    require(same, config, "full_state() gives the weights by name", f"{sorted(state)} or values differ")
    if issubclass(type(strategy), TensorGathering):
        check_look_ups(config, strategy, inner, weights)
    first = torch.optim.AdamW(prepared.parameters(), lr=0.1)
    first.step()
    saved = strategy.optimizer_state(prepared, first)
    second = torch.optim.AdamW(prepared.parameters(), lr=0.1)
    strategy.load_optimizer_state(prepared, second, saved)
    a, b = (o.state_dict()["state"] for o in (first, second))
    restored = a.keys() == b.keys() and all(torch.equal(whole(a[i]["exp_avg"]), whole(b[i]["exp_avg"])) for i in a)
    require(restored, config, "an optimizer's state survives saving and loading", "the moments differ")


def check_release(config: ComponentConfig, strategy: Any) -> None:
    prepared = strategy.prepare(plain_module())
    module = weakref.ref(strategy.unwrap(prepared))
    strategy.release(prepared)
    del prepared
    gc.collect()
    require(module() is None, config, "release() keeps nothing of a module", "it is still in memory")


def check_look_ups(
    config: ComponentConfig, strategy: Any, inner: torch.nn.Module, weights: Mapping[str, torch.Tensor]
) -> None:
    """Whole weights one by one."""
    right: dict[str, bool] = {}

    def look_up(gathered: Mapping[str, torch.Tensor]) -> None:
        for name in gathered:
            same_shape = like(gathered, name).shape == weights[name].shape
            right[name] = same_shape and torch.equal(gathered[name], weights[name])

    gather_weights(strategy, inner, look_up)
    every = strategy.rank > 0 or (right.keys() == weights.keys() and all(right.values()))
    require(every, config, "full_tensor() and full_shape() give each weight, and its shape", f"{right}")
    views = ShardedWeights(strategy, inner.state_dict(keep_vars=True), torch.float64)
    same = {name: torch.equal(views[name].cpu(), weights[name].double()) for name in views}
    require(all(same.values()), config, "full_tensor() gives every rank the weight, in a type", f"{same}")

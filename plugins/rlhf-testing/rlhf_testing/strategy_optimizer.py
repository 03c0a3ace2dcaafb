"""Conformance of strategies that make the optimizer themselves, on one process."""

from __future__ import annotations

import math
from typing import Any

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.distributed import LocalStrategy, NormPart, OptimizerPlan
from rlhf_core.distributed.optimizer import prepare_training
from rlhf_core.plugins.strategy_protocols import OptimizerGroup
from rlhf_testing.report import require

INPUTS_N3 = torch.linspace(-1.0, 2.0, 18).view(6, 3)
FAR = 1e-5


def network() -> torch.nn.ModuleDict:
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    parts = {name: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)) for name in "pc"}
    torch.random.set_rng_state(torch_state)
    return torch.nn.ModuleDict({"policy": parts["p"], "critic": parts["c"]})


def plan_of(module: torch.nn.Module) -> OptimizerPlan:
    """Of a module with the parts ``policy`` and ``critic``: matrices decay, and the critic has a rate of its own."""
    names = [name for name, _ in module.named_parameters()]
    groups = [
        OptimizerGroup(
            tuple(n for n in names if n.startswith(part) and n.endswith(kind)), rate, decay, part == "critic"
        )
        for part, rate in (("policy", 0.01), ("critic", 0.03))
        for kind, decay in (("weight", 0.1), ("bias", 0.0))
    ]
    return OptimizerPlan(tuple(groups), 0.01, (0.9, 0.999), 1e-3)


class _Training:
    """One module under one strategy."""

    def __init__(self, strategy: Any, module: torch.nn.ModuleDict) -> None:
        self.strategy, self.module = strategy, module
        self.prepared, self.optimizer = prepare_training(strategy, module, plan_of(network()))

    def update(self, max_norm: float = 1e9, scale: float = 1.0, critic_only: bool = False) -> dict[str, float]:
        """Two micro-batches and a step; ``scale`` multiplies the loss."""
        for number, part_N3 in enumerate(INPUTS_N3.split(3)):
            with self.strategy.accumulate(self.prepared, last=number == 1):
                inputs = part_N3.to(self.strategy.device)
                values = self.module["policy"](inputs).square() + 3 * self.module["critic"](inputs).square()
                self.strategy.backward(values.sum() * scale)
        parts = [
            NormPart("grad_norm", self.module["policy"], learns=not critic_only),
            NormPart("critic_grad_norm", self.module["critic"]),
        ]
        self.optimizer.set_rates(1.0, 0.5)
        return self.optimizer.step(parts, max_norm)

    def weights(self) -> dict[str, torch.Tensor]:
        state = self.strategy.full_state(self.strategy.unwrap(self.prepared))
        return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def _gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_own_optimizer(config: ComponentConfig, strategy: Any) -> None:
    """Norms, clipping, a part that does not learn, a step left out, and the saved state, against torch's AdamW."""
    own, plain = _Training(strategy, network()), _Training(LocalStrategy(), network())
    cases: tuple[dict[str, Any], ...] = ({}, {"max_norm": 0.5}, {"critic_only": True}, {"scale": 0.3})
    for settings in cases:
        norms, expected = own.update(**settings), plain.update(**settings)
        same = norms.keys() == expected.keys()
        same = same and all(math.isclose(norms[k], expected[k], rel_tol=1e-4) for k in norms)
        require(same, config, "step() returns each part's norm before clipping", f"{norms} instead of {expected}")
        gap = _gap(own.weights(), plain.weights())
        rule = f"weights after an update with {settings or 'no clipping'} are those of AdamW"
        require(gap < FAR, config, rule, f"apart by {gap:.1g}", "rates, decay and clips go by the plan's groups")
    before, state = own.weights(), own.optimizer.state_dict()
    norms = own.update(scale=math.inf)
    left_out = not all(map(math.isfinite, norms.values())) and _gap(own.weights(), before) == 0
    require(left_out, config, "a step whose norm is not finite changes nothing", f"norms {norms}")
    resumed = network()
    resumed.load_state_dict(before)
    again = _Training(strategy, resumed)
    again.optimizer.load_state_dict(state)
    own.update()
    again.update()
    gap = _gap(own.weights(), again.weights())
    require(gap == 0, config, "training goes on from a saved state bit for bit", f"apart by {gap:.1g}")

"""Conformance of strategies that make the optimizer themselves, on one process."""

from __future__ import annotations

import math
from typing import Any

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.distributed import LocalStrategy, NormPart
from rlhf_core.distributed.optimizer import prepare_training
from rlhf_testing.report import require
from rlhf_testing.strategy_parts import FAR, INPUTS_N3, PolicyAndCritic, gap, plan, weights_on_every_rank

MICRO_BATCHES = 3


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Training:
    def __init__(self, strategy: Any, module: PolicyAndCritic) -> None:
        self.strategy, self.module = strategy, module
        self.prepared, self.optimizer = prepare_training(strategy, module, plan())

    def backward(self, rows: list[int], scale: float) -> None:
        """Micro-batches of these rows of ``INPUTS_N3``; one without any repeats a row whose loss counts nothing."""
        for n in range(MICRO_BATCHES):
            own = rows[n::MICRO_BATCHES]
            inputs = INPUTS_N3[own or [0]].to(self.strategy.device)
            with self.strategy.accumulate(self.prepared, last=n == MICRO_BATCHES - 1):
                values = self.prepared(inputs).sum() / len(INPUTS_N3)
                self.strategy.backward(values * (scale if own else 0.0))

    def step(self, max_norm: float, *, policy_learns: bool = True) -> dict[str, float]:
        parts = [
            NormPart("grad_norm", self.module.policy, learns=policy_learns),
            NormPart("critic_grad_norm", self.module.critic),
        ]
        self.optimizer.set_rates(1.0, 0.5)
        return self.optimizer.step(parts, max_norm)

    def gradients(self) -> dict[str, torch.Tensor]:
        named = self.strategy.unwrap(self.prepared).named_parameters()
        return {name: whole(p.grad.detach()).cpu().clone() for name, p in named}

    def weights(self) -> dict[str, torch.Tensor]:
        return weights_on_every_rank(self.strategy, self.prepared)


def check_own_optimizer(config: ComponentConfig, strategy: Any) -> None:
    """Norms, clipping, a part that does not learn, a step left out, and the saved state, against torch's AdamW."""
    own, plain = Training(strategy, PolicyAndCritic()), Training(LocalStrategy(), PolicyAndCritic())

    def update(training: Training, max_norm: float = 1e9, scale: float = 1.0, **step: bool) -> dict[str, float]:
        training.backward([*range(len(INPUTS_N3))], scale)
        return training.step(max_norm, **step)

    cases: tuple[dict[str, Any], ...] = ({}, {"max_norm": 0.1}, {"policy_learns": False}, {"scale": 0.3})
    for settings in cases:
        norms, expected = update(own, **settings), update(plain, **settings)
        same = norms.keys() == expected.keys()
        same = same and all(math.isclose(norms[k], expected[k], rel_tol=1e-4) for k in norms)
        require(same, config, "step() returns each part's norm before clipping", f"{norms} instead of {expected}")
        far = gap(own.weights(), plain.weights())
        rule = f"weights after an update with {settings or 'no clipping'} are those of AdamW"
        require(far < FAR, config, rule, f"apart by {far:.1g}", "rates, decay and clips go by the plan's groups")
    before, state = own.weights(), own.optimizer.state_dict()
    norms = update(own, scale=math.inf)
    left_out = not all(map(math.isfinite, norms.values())) and gap(own.weights(), before) == 0
    require(left_out, config, "a step whose norm is not finite changes nothing", f"norms {norms}")
    resumed = PolicyAndCritic()
    resumed.load_state_dict(before)
    again = Training(strategy, resumed)
    again.optimizer.load_state_dict(state)
    update(own)
    update(again)
    far = gap(own.weights(), again.weights())
    require(far == 0, config, "training goes on from a saved state bit for bit", f"apart by {far:.1g}")

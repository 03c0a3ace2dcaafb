"""Gradients of ppo with a value loss, of sft, dpo and reward models under FSDP, of shares that are uneven or empty.

Imported by the script that compares FSDP with one process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from zero import relative, samples_of, training

from rlhf_core.distributed.group import LocalStrategy

KINDS = ("sft", "dpo", "reward_model", "ppo shared", "ppo separate")
SHARES = (5, 7)
"""Of seven samples those of the first rank; the other has the rest."""
EVERY = {trained + option: SHARES for trained, option in itertools.product(KINDS, ("", ", lora"))}
BRIEF = {"sft": (7,), "dpo, lora": (5,), "ppo shared, lora": (7,), "ppo separate": (5,)}


def policy_gradient(strategy: Any, kind: str, share: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Of every trained parameter just before clipping, as it lies on this rank."""
    made = training(strategy, kind)
    critic = getattr(strategy.unwrap(made.prepared), "critic", None)
    if critic is not None:
        with torch.no_grad():
            critic.weight_H.fill_(0.05)  # at zero nothing reaches the trunk
    gradients: dict[str, torch.Tensor] = {}
    clip = strategy.clip_grad_norm

    def capture(module: Any, max_norm: float) -> float:
        if not gradients:  # the critic is clipped apart, and later
            named = strategy.unwrap(made.prepared).named_parameters()
            gradients.update({name: p.grad.clone() for name, p in named if p.grad is not None})
        return clip(module, max_norm)

    strategy.clip_grad_norm = capture
    made.learner.update(share)
    return gradients


def policy_gradients(make: Callable[[], Any], kinds: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Largest distance from one process's gradient, relative where it exceeds 1, and to the largest where none does.

    Args:
        make: the strategy on this rank.
        kinds: what is trained, each with the shares of the first rank.
    """
    far: dict[str, float] = {}
    for kind, shares in kinds.items():
        samples = samples_of(kind)
        want = policy_gradient(LocalStrategy(), kind, samples)
        scales = {part: scale(want, part) for part in {name.partition(".")[0] for name in want}}
        assert min(scales.values()) > 1e-5, f"{kind}: gradients are there: {scales}"
        assert any(name.startswith("critic.trunk") for name in want) is kind.startswith("ppo separate")
        for first in shares:
            strategy = make()
            got = policy_gradient(strategy, kind, samples[:first] if strategy.rank == 0 else samples[first:])
            assert got.keys() == want.keys()
            far[f"{kind}/{first}"] = max(
                relative(whole(got[name]), gradient) / scales[name.partition(".")[0]] for name, gradient in want.items()
            )
    return far


def scale(gradients: dict[str, torch.Tensor], part: str) -> float:
    """The largest gradient of the policy or the critic, at most 1: where all are small, so is what they may differ."""
    return min(1.0, max(float(g.abs().max()) for name, g in gradients.items() if name.partition(".")[0] == part))


def whole(value: Any) -> torch.Tensor:
    """A tensor that ranks hold parts of."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value

"""Routers of a transformers model, and what they choose. Suffixes: ``_N`` tokens, ``_E`` experts, ``_K`` chosen."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NAMES = ("gate", "router")
TOPK: tuple[Any, ...] = (torch.topk, torch.Tensor.topk)


def find_routers(model: Any) -> list[Any]:
    """Routers of a model in the order of its layers, without what peft wraps around them."""
    routers: list[Any] = []
    for owner in model.modules():
        children = dict(owner.named_children())
        if "experts" not in children:
            continue
        beside = [children[name] for name in NAMES if name in children]
        inner = [_innermost(module) for module in beside]
        routers += [r for r in inner if all(hasattr(r, n) for n in ("weight", "top_k", "num_experts"))]
    return routers


def _innermost(module: Any) -> Any:
    while hasattr(module, "get_base_layer") and hasattr(module, "base_layer"):
        module = module.base_layer
    return module


def probabilities(router: Any, logits_NE: torch.Tensor) -> torch.Tensor:
    """What the load-balancing loss is made of: softmax, or of a router with sigmoids these over their sum."""
    if hasattr(router, "e_score_correction_bias"):
        scores_NE = logits_NE.float().sigmoid()
        return scores_NE / scores_NE.sum(-1, keepdim=True)
    return logits_NE.float().softmax(-1)


class Chosen(TorchFunctionMode):
    """Inside, a router's ``topk`` gives these experts ``_NK``, with their own scores; -1 leaves a token's choice."""

    def __init__(self, chosen_NK: torch.Tensor, experts: int) -> None:
        super().__init__()
        self.chosen_NK, self.experts = chosen_NK, experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in TOPK or out[1].shape != self.chosen_NK.shape or args[0].shape[-1] != self.experts:
            return out
        indices_NK = torch.where(self.chosen_NK < 0, out[1], self.chosen_NK)
        return type(out)((args[0].gather(-1, indices_NK), indices_NK))

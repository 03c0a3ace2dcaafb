"""Torch optimizers of a run's parameter groups, each of which has its learning rate, weight decay and part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rlhf_plugin_optimizers.config import (
        AdafactorConfig,
        AdamW8bitConfig,
        MuonConfig,
        PagedAdamWConfig,
        ScheduleFreeConfig,
    )

Groups = list[dict[str, Any]]


def adafactor(settings: AdafactorConfig, groups: Groups) -> torch.optim.Optimizer:
    decay, clip = settings.beta2_decay, settings.clip_threshold
    return torch.optim.Adafactor(groups, beta2_decay=decay, eps=(None, settings.eps), d=clip)


def hidden_matrices(module: torch.nn.Module) -> set[str]:
    """Names of the weights of linear layers, without output heads and what else is tied to an embedding."""
    named: dict[str, Any] = dict(module.named_modules())
    heads = [m.get_output_embeddings() for m in named.values() if hasattr(m, "get_output_embeddings")]
    embeddings = [m for m in named.values() if isinstance(m, torch.nn.Embedding)]
    left_out = {id(m.weight) for m in (*heads, *embeddings) if m is not None}
    linear = {f"{n}.weight": m.weight for n, m in named.items() if n and isinstance(m, torch.nn.Linear)}
    return {name for name, weight in linear.items() if weight.shape[0] > 1 and id(weight) not in left_out}


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's Muon for groups whose part is ``hidden``, its AdamW for the others; both work on this one's state."""

    def __init__(self, settings: MuonConfig, groups: Groups) -> None:
        self._steps: list[torch.optim.Optimizer] = []
        super().__init__(groups, {})
        hidden = [group for group in self.param_groups if group["part"] == "hidden"]
        others = [group for group in self.param_groups if group["part"] != "hidden"]
        if hidden:
            momentum, nesterov, count = settings.momentum, settings.nesterov, settings.ns_steps
            like_adamw: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw", "ns_steps": count}
            self._steps.append(torch.optim.Muon(hidden, momentum=momentum, nesterov=nesterov, **like_adamw))
        if others:
            self._steps.append(torch.optim.AdamW(others, betas=settings.betas, eps=settings.eps))
        self._share()

    def _share(self) -> None:
        for inner in self._steps:
            of_muon = isinstance(inner, torch.optim.Muon)
            inner.state = self.state
            inner.param_groups = [group for group in self.param_groups if (group["part"] == "hidden") is of_muon]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for inner in self._steps:
            inner.step()


def schedule_free(settings: ScheduleFreeConfig, groups: Groups) -> torch.optim.Optimizer:
    from schedulefree import AdamWScheduleFree

    optimizer = AdamWScheduleFree(groups, betas=settings.betas, eps=settings.eps, foreach=False)
    optimizer.train()
    return optimizer


def adamw_8bit(settings: AdamW8bitConfig, groups: Groups) -> torch.optim.Optimizer:
    from bitsandbytes.optim.adamw import AdamW8bit

    return AdamW8bit(groups, betas=settings.betas, eps=settings.eps)


def paged_adamw(settings: PagedAdamWConfig, groups: Groups) -> torch.optim.Optimizer:
    from bitsandbytes.optim.adamw import PagedAdamW

    return PagedAdamW(groups, betas=settings.betas, eps=settings.eps)

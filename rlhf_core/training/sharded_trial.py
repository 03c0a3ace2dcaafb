"""Trials of a model that was loaded without weights, once each rank has read its part of them.

A model with weights is tried when it is loaded (:func:`rlhf_core.models.load.check_causal`). One without can only be
tried on shards, inside of a forward that all ranks make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from rlhf_core.models.layers.last_token import can_pack
from rlhf_core.models.layers.trunk_and_head import take_apart
from rlhf_core.models.load import check_causal
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.training.no_grad_forward import NoGradForward
from rlhf_core.training.structure import structure

R = TypeVar("R")


def probe_on_shards(strategy: Strategy, prepared: torch.nn.Module, tried: Callable[[Any], R]) -> R:
    """What ``tried(module)`` returns inside of a forward without gradient; all ranks call it.

    Args:
        strategy: shards the module.
        prepared: the module, which the strategy prepared; its ``forward(samples, compute)`` returns
            ``compute(module, samples)``.
        tried: makes as many forwards on every rank.
    """
    no_grad = NoGradForward(strategy, prepared)
    return no_grad.rows([None], lambda samples: [[0]], lambda module, _: [tried(module)])[0]


def try_transformer(strategy: Strategy, prepared: torch.nn.Module, path: str) -> None:
    """Refuse an encoder, and try which kernels the model allows, before anything is measured or trained.

    Arguments as of :func:`probe_on_shards`.

    Args:
        strategy: shards the module.
        prepared: holds a causal language model, or the trunk of one.
        path: of the model, as the user wrote it.

    Raises:
        ModelError: it is an encoder.
    """

    def tried(module: Any) -> None:
        model = outermost_transformer(module)
        check_causal(model, path)
        if take_apart(model) is None:
            can_pack(model)
        else:
            structure(model)

    probe_on_shards(strategy, prepared, tried)


def outermost_transformer(module: torch.nn.Module) -> Any:
    """The first transformers model in a module, under peft's wrapper."""
    from transformers import PreTrainedModel

    return next(part for part in module.modules() if isinstance(part, PreTrainedModel))

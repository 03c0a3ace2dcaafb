"""What a model that was loaded without weights allows, tried once each rank has read its part of them.

A model with weights is tried when it is loaded (:func:`rlhf_core.models.load.check_causal`), and again where its
structure matters. One without can only be tried on shards, by all ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlhf_core.errors import ModelError
from rlhf_core.models.load import check_causal
from rlhf_core.policy.forward_options import ForwardOptions, allowed
from rlhf_core.policy.structure import structure
from rlhf_core.protocols import Strategy
from rlhf_core.strategy.no_grad_forward import NoGradForward
from rlhf_core.trainers.online.config import OnlineTrainerConfig


def tried_options(
    config: OnlineTrainerConfig, strategy: Strategy, prepared: torch.nn.Module, path: str
) -> ForwardOptions:
    """What the settings want and the model allows; all ranks call it.

    Args:
        config: the trainer's settings.
        strategy: shards the module.
        prepared: the policy's module, which the strategy prepared.
        path: of the model, as the user wrote it.

    Raises:
        ModelError: an encoder; logits that are not the head applied to the trunk's hidden states, which a model with
            weights would have shown before the engine and the critic were built; packing is required and impossible.
    """
    required = config.packing == "on"

    def tried(module: Any, _: Sequence[Any]) -> list[ForwardOptions]:
        model = module.model
        check_causal(model, path)
        if not structure(model).split:
            raise ModelError(
                f"'{path}' cannot be trained on shards by this trainer",
                why="its logits are not its head applied to its trunk's hidden states (it caps or scales them, say)",
                fix="--set strategy=ddp",
            )
        return [allowed(model, module.options, packing_required=required)]

    no_grad = NoGradForward(strategy, prepared)
    return no_grad.rows([None], lambda samples: [[0]], tried)[0]

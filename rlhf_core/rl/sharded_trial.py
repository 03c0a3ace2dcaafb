"""The forward options that a policy allows which was loaded without weights."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.models.load import check_causal
from rlhf_core.plugins.protocols import Strategy
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.forward_options import ForwardOptions, allowed
from rlhf_core.training.sharded_trial import probe_on_shards
from rlhf_core.training.structure import structure
from rlhf_core.types.errors import ModelError


def probe_forward_options(
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

    def tried(module: Any) -> ForwardOptions:
        model = module.model
        check_causal(model, path)
        if not structure(model).split:
            raise ModelError(
                f"'{path}' cannot be trained on shards by this trainer",
                why="its logits are not its head applied to its trunk's hidden states; it may cap or scale them",
                fix="--set strategy=ddp",
            )
        return allowed(model, module.options, packing_required=required)

    return probe_on_shards(strategy, prepared, tried)

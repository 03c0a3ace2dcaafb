"""A copy of the policy to sample from while the policy itself is being trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any


class SamplerPolicy:
    """Has the policy's shape, and the weights of one of its versions.

    Weights that are not trained (under LoRA: all but the adapters) are shared with the policy, not copied.

    Args:
        policy: whole on this process, with its ``requires_grad`` flags as they stay.
    """

    def __init__(self, policy: Any) -> None:
        shared = {id(p): p for p in policy.parameters() if not p.requires_grad}
        self.model = copy.deepcopy(policy, shared)
        """To be sampled from. Trained weights stay marked as such, for autocast keeps casts of no others."""
        self.model.eval()
        self.names = trained_names(self.model)
        """Of the weights that are trained."""

    def load(self, weights: Mapping[str, Any]) -> None:
        """Let the copy be the version of a :func:`snapshot`."""
        import torch

        parameters = dict(self.model.named_parameters())  # those of a model without weights are replaced
        with torch.no_grad():
            for name in self.names:
                parameters[name].copy_(weights[name])


def trained_names(policy: Any) -> list[str]:
    """Names of the parameters that are trained."""
    return [name for name, parameter in policy.named_parameters() if parameter.requires_grad]


def snapshot(policy: Any, names: Sequence[str]) -> dict[str, Any]:
    """The policy's weights of these names as they are now, cloned; call it where they are whole."""
    import torch

    parameters = dict(policy.named_parameters())
    with torch.no_grad():
        return {name: parameters[name].detach().clone() for name in names}

"""A copy of the policy to sample from while the policy itself is being trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


class SamplerPolicy:
    """Has the policy's shape, and the weights of one of its versions.

    Weights that are not trained (under LoRA: all but the adapters) are shared with the policy, not copied.

    Args:
        policy: whole on this process, with its ``requires_grad`` flags as they stay.
    """

    def __init__(self, policy: Any) -> None:
        self.names = [name for name, p in policy.named_parameters() if p.requires_grad]
        shared = {id(p): p for p in policy.parameters() if not p.requires_grad}
        self.model = copy.deepcopy(policy, shared)
        """To be sampled from. Trained weights stay marked as such, for autocast keeps casts of no others."""
        self.model.eval()
        parameters = dict(self.model.named_parameters())
        self._trained = {name: parameters[name] for name in self.names}

    def snapshot(self, policy: Any) -> dict[str, Any]:
        """The policy's trained weights as they are now, cloned; call it where they are whole."""
        import torch

        parameters = dict(policy.named_parameters())
        with torch.no_grad():
            return {name: parameters[name].detach().clone() for name in self.names}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Become the version that :meth:`snapshot` returned."""
        import torch

        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(weights[name])

    take, put = snapshot, load
    """The earlier names."""

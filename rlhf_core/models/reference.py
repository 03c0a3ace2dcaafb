"""The reference policy: a frozen copy, or with LoRA the adapter switched off."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

FILE = "reference.safetensors"


class Reference:
    """The policy as it was before training, or when it was last synced; ``model`` is peft-wrapped or a frozen copy."""

    def __init__(self, model: Any, adapter: bool) -> None:
        self.model, self.adapter = model, adapter

    @classmethod
    def of(cls, policy: Any) -> Reference:
        """Make the reference of a policy that has not been trained yet."""
        if hasattr(policy, "disable_adapter"):
            return cls(policy, adapter=True)
        frozen = copy.deepcopy(policy).eval().requires_grad_(False)
        return cls(frozen, adapter=False)

    @contextlib.contextmanager
    def active(self) -> Generator[Any, None, None]:
        """Yield the model that computes reference logprobs, without dropout; the policy is as it was afterwards."""
        from rlhf_core.models.layers.trunk_and_head import quiet

        with quiet(self.model), self.model.disable_adapter() if self.adapter else contextlib.nullcontext():
            yield self.model

    def sync(self, policy: Any) -> None:
        """Become the policy as it is now; on every rank, where both are whole or both are sharded alike."""
        assert not self.adapter, "with LoRA the reference is the adapter switched off"
        import torch

        with torch.no_grad():
            for tensor, current in zip(self._tensors(self.model), self._tensors(policy), strict=True):
                tensor.copy_(current)

    @staticmethod
    def _tensors(model: Any) -> list[Any]:
        return [*model.parameters(), *model.buffers()]

    def save(self, folder: Path, weights: Mapping[str, Any] | None = None) -> None:
        """Write the weights (None takes the model's own), for a checkpoint of a run that syncs."""
        from rlhf_core.models.tensor_files import save_named

        parameters = dict(self.model.named_parameters())
        save_named(parameters if weights is None else weights, list(parameters), folder / FILE)

    def load(self, folder: Path) -> None:
        """Restore them, bit for bit; before a strategy shards the model."""
        from rlhf_core.models.slices import load_whole

        names = {name for name, _ in self.model.named_parameters()}
        fix = "resume with the kl.sync_every that the run was started with"
        load_whole(self.model, folder / FILE, names, "reference policy", fix)

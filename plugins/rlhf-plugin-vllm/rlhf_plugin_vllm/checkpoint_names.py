"""Weights under the names of their model's files: transformers fuses the experts of a layer into one tensor, and vLLM
reads them one by one, as checkpoints hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rlhf_core.models import ModelError
from rlhf_core.models.adapters import plain_name


def conversions(model: Any) -> Any:
    """How transformers makes a model's weights of those of its files; empty where they are the same."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    return get_model_conversion_mapping(model, add_legacy=False)


class CheckpointNames:
    """Cuts a model's weights into those of its files, and puts them together again; as they are where these are one."""

    def __init__(self, model: Any) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        converted = getattr(self.model, "_weight_conversions", None) or conversions(self.model)
        named = ((plain_name(n), p) for n, p in self.model.named_parameters() if converted and ".lora_" not in n)
        self.shapes = {name: p.shape for name, p in named}
        """Of the weights without adapters; empty where nothing is converted."""
        if not self.shapes:
            return
        empty = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        apart = {stored for name in empty for stored in self.split(name, empty[name])}
        if apart != self._reverted(empty).keys():
            raise ModelError(
                f"the weights of {type(self.model).__name__} cannot be sent to vLLM",
                why="transformers makes some weights of its files of several of the model's",
                fix="--set rollout=native",
            )

    def split(self, name: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """A weight of the model as its files have it."""
        return self._reverted({name: weight}) if name in self.shapes else {name: weight}

    def _reverted(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import revert_weight_conversion

        return revert_weight_conversion(self.model, weights)

    def join(self, name: str, stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A weight of the model of those of its files: what ``split`` does to places is undone."""
        if name not in self.shapes:
            return stored[name]
        shape = self.shapes[name]
        parts = self.split(name, torch.arange(shape.numel()).view(shape))
        flat: torch.Tensor | None = None
        for stored_name, places in parts.items():
            part = stored[stored_name]
            flat = part.new_empty(shape.numel()) if flat is None else flat
            flat[places.flatten()] = part.flatten()
        assert flat is not None
        return flat.view(shape)


class JoinedWeights(Mapping[str, torch.Tensor]):
    """Stored weights by the names that they have in the model."""

    def __init__(self, stored: Mapping[str, torch.Tensor], names: CheckpointNames) -> None:
        self.stored, self.names = stored, names

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.names.shapes and name not in self.stored:
            raise KeyError(name)
        return self.names.join(name, self.stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.shapes or self.stored)

    def __len__(self) -> int:
        return len(self.names.shapes or self.stored)

    def __contains__(self, name: object) -> bool:
        return name in (self.names.shapes or self.stored)  # without reading it

"""Weights by name that are gathered or computed when they are looked up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Self

import torch

Weights = Mapping[str, torch.Tensor]


class WeightsOnDemand(Mapping[str, torch.Tensor]):
    """Name -> whole weight, which is gathered when it is looked up."""

    @abstractmethod
    def like(self, name: str) -> torch.Tensor:
        """A tensor of the weight's shape and type, without its values: nothing is gathered."""


class ComputedWeights(Mapping[str, torch.Tensor]):
    """Name -> weight that is computed when it is looked up.

    Args:
        values: compute them.
        shapes: tensors of each one's shape and type, where computing one means gathering it; None elsewhere.
    """

    def __init__(
        self, values: Mapping[str, Callable[[], torch.Tensor]], shapes: Mapping[str, torch.Tensor] | None
    ) -> None:
        self._values, self.shapes = values, shapes

    @classmethod
    def of(cls, weights: Weights, stored: Mapping[str, str], value: Callable[[str, str], torch.Tensor]) -> Self:
        """Weights each of which has the shape and the type of one that is there.

        Args:
            weights: by their own names.
            stored: name of a computed weight -> name of the one in ``weights``.
            value: of both names, the computed weight.
        """
        shapes = {name: like(weights, place) for name, place in stored.items()} if on_demand(weights) else None
        return cls({name: partial(value, name, place) for name, place in stored.items()}, shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._values[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values


def on_demand(weights: Weights) -> bool:
    """Whether a weight is gathered when it is looked up, so that looking up all of them would hold the model whole."""
    return isinstance(weights, WeightsOnDemand) or (isinstance(weights, ComputedWeights) and weights.shapes is not None)


def like(weights: Weights, name: str) -> torch.Tensor:
    """A tensor of a weight's shape and type, not gathered for it where that can be avoided."""
    if isinstance(weights, WeightsOnDemand):
        return weights.like(name)
    if isinstance(weights, ComputedWeights) and weights.shapes is not None:
        return weights.shapes[name]
    return weights[name]

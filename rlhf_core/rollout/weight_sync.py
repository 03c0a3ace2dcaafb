"""Brings the policy's weights to what samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rlhf_core.config.base import ComponentConfig
from rlhf_core.config.construct import import_component
from rlhf_core.models.sampler_policy import SamplerPolicy, snapshot

Tensors = Mapping[str, Any]
"""Name -> tensor of every trained weight."""


class WeightSync:
    """Copies the policy's trained weights to the sampler's copy, or hands them to an engine that keeps its own.

    An engine may have ``update_weights(version, tensors)``; it is called before the first batch of each version. One
    that samples from the policy itself needs nothing. With ``in_flight`` the engine takes weights at any time, while it
    samples too (ADR 0020).

    Args:
        policy: being trained.
        whole_weights: context in which its weights are whole on every rank.
        sampler: a copy to sample from while the policy is trained; None samples from the policy itself.
        engine: the rollout engine.
        names: of the trained weights, before a strategy wrapped the policy.
    """

    def __init__(
        self,
        policy: Any,
        whole_weights: Callable[[], AbstractContextManager[None]],
        sampler: SamplerPolicy | None,
        engine: Any,
        names: Sequence[str],
    ) -> None:
        self.policy, self.whole_weights, self.sampler = policy, whole_weights, sampler
        self._names = list(names)
        self._update_weights = getattr(engine, "update_weights", None)
        self.in_flight = bool(getattr(engine, "in_flight", False))
        self._release_memory = getattr(engine, "release_memory", None)
        self._published: int | None = None

    def snapshot(self) -> Tensors:
        """The trained weights as they are now, cloned."""
        with self.whole_weights():
            return snapshot(self.policy, self._names)

    def load(self, version: int, weights: Tensors) -> None:
        """Let what samples have the weights of :meth:`snapshot`."""
        if self.sampler is not None:
            self.sampler.load(weights)
        if self._update_weights is not None and version != self._published:
            self._update_weights(version, weights)
            self._published = version

    def sync(self, version: int) -> None:
        """Let what samples have the policy's weights as they are now; nothing where it has them already."""
        if self.sampler is not None or (self._update_weights is not None and version != self._published):
            self.load(version, self.snapshot())

    def release_memory(self) -> None:
        """Let an engine that shares the policy's device give memory back; weights that it gave up are sent again."""
        if self._release_memory is not None and self._release_memory():
            self._published = None


def keeps_own_weights(engine: Any) -> bool:
    """Whether the rollout engine that a Config names has ``update_weights``, without building it.

    False where the Config builds its engine in a method of its own, which cannot be known before.
    """
    named = type(engine).build is ComponentConfig.build
    return named and hasattr(import_component(type(engine)), "update_weights")

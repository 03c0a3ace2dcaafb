"""Logprobs under the reference policy, wherever its weights are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

from rlhf_core.models.reference import Reference
from rlhf_core.models.slices import has_no_weights
from rlhf_core.policy.structure import structure
from rlhf_core.protocols import ShardedForward, Strategy
from rlhf_core.strategy.no_grad_forward import Compute, NoGradForward
from rlhf_core.trainers.common.micro_batches import MicroBatcher
from rlhf_core.trainers.common.policy_module import PolicyModule, columns
from rlhf_core.trainers.common.training_sample import Floats, TrainingSample

R = TypeVar("R")


class ReferencePolicy:
    """The reference policy beside the one that is trained.

    Args:
        reference: a frozen copy, or the adapter switched off. All ranks construct this together, after the copy's
            weights were loaded: the strategy may shard it.
        policy: being trained.
        trained: the policy's prepared module; its part ``model`` is the policy.
        strategy: ranks, and where the weights are.
        sync_every: steps after which the policy becomes the reference; 0 never.
    """

    def __init__(
        self, reference: Reference, policy: Any, trained: torch.nn.Module, strategy: Strategy, sync_every: int
    ) -> None:
        self.reference, self.policy, self.trained, self.strategy = reference, policy, trained, strategy
        self.sync_every = sync_every
        self._sharded = isinstance(strategy, ShardedForward)
        if self._sharded and not reference.adapter and not has_no_weights(reference.model):
            structure(reference.model)  # tries a few forwards on the model, while it is whole
        module = trained if reference.adapter else PolicyModule(reference.model)
        self._no_grad = NoGradForward(strategy, module, frozen=not reference.adapter)

    def rows(self, samples: Sequence[Any], micro_batcher: MicroBatcher, compute: Compute[R]) -> list[R]:
        """One row per sample of what ``compute(module, samples)`` returns without gradient and dropout.

        ``module.model`` is the reference policy's; all ranks call this together, with none of their own maybe.
        """
        return self._no_grad.rows(samples, micro_batcher, compute, self.reference.active())

    def logprobs(
        self, samples: Sequence[TrainingSample], module: PolicyModule, micro_batcher: MicroBatcher
    ) -> list[Floats]:
        """Logprobs ``[T]`` of each completion, at the temperature and with the forward options of ``module``."""

        def compute(reference: Any, micro: Sequence[TrainingSample]) -> list[Floats]:
            return columns(module.measure_micro(micro, model=reference.model))[0]

        return self.rows(samples, micro_batcher, compute)

    def sync(self, step: int) -> dict[str, float]:
        """Become the policy as it is now, if this step ends so; return a metric that says it."""
        if self.sync_every == 0 or step % self.sync_every:
            return {}
        with nullcontext() if self._sharded else self.strategy.gathered(self.trained):
            self.reference.sync(self.policy)
        return {"reference_synced": 1.0}

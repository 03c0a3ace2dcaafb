"""What a strategy provides, split by who calls it; ``Strategy`` is all of it.

A function that only exchanges values asks for :class:`Collectives`, one that only saves weights for
:class:`ModelSharding`, so that it can be given something smaller than a whole strategy (a process group of a second
thread, a test's stand-in).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


class Collectives(Protocol):
    """Which rank this is, and exchanges between ranks. Every rank makes the same calls in the same order."""

    rank: int
    world_size: int

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        """Add each value over ranks (float64)."""
        ...

    def max_over_ranks(self, value: int) -> int:
        """Largest value over ranks."""
        ...

    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's plain-Python value, in rank order, on every rank."""
        ...

    def barrier(self, what: str) -> None:
        """Wait for every rank; ``what`` is named if the deadline passes."""
        ...


class ModelSharding(Protocol):
    """Where parameters are, and how to see them whole."""

    device: torch.device

    def prepare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Place, wrap or shard the trained module."""
        ...

    def unwrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module under the wrapper."""
        ...

    def gathered(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        """Context in which every rank holds the whole weights of the prepared module.

        For forward passes without gradient whose number differs between ranks: rollouts, old logprobs, evaluation.
        All ranks enter and leave it together.
        """
        ...

    def full_state(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Weights of the module, or of a submodule of it, by name; all ranks call it, rank 0 gets them whole."""
        ...


class GradientSync(Protocol):
    """Backward passes whose gradients sum over micro-batches and ranks."""

    def accumulate(self, module: torch.nn.Module, last: bool) -> AbstractContextManager[None]:
        """Context for one micro-batch; gradients synchronise only in the last."""
        ...

    def backward(self, loss: torch.Tensor) -> None:
        """Backward such that gradients *sum* over ranks (the loss carries the global denominator)."""
        ...

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """Clip the global gradient norm and return it as it was before clipping."""
        ...


class OptimizerSharding(Protocol):
    """How the optimizer's state is saved and restored."""

    sharded: bool
    """True if each rank holds its own part of the optimizer state; a checkpoint then keeps one file per rank."""

    def optimizer_state(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """This rank's optimizer state (see ``sharded``); all ranks call it."""
        ...

    def load_optimizer_state(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Restore what :meth:`optimizer_state` returned."""
        ...


class Strategy(Collectives, ModelSharding, GradientSync, OptimizerSharding, Protocol):
    """How parameters, gradients and ranks are laid out. A sharded strategy implements this and no trainer changes."""


@runtime_checkable
class ShardedForward(Protocol):
    """Optional for a strategy: forwards without gradient while each rank keeps its shards.

    Reference and old logprobs, critic values and held-out losses then need no whole weights
    (:class:`rlhf_core.strategy.no_grad_forward.NoGradForward`). A strategy without it is asked for
    :meth:`ModelSharding.gathered`, and every rank holds the frozen reference whole.
    """

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        """Place or shard a module that is never trained.

        Its parameters are to lie as :meth:`ModelSharding.prepare` lays the trained ones, so that a reference that is
        synced is copied shard by shard.
        """
        ...

    def sharded_forward(self, module: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        """Context that yields what to call instead of a prepared module; afterwards every rank holds shards only.

        All ranks enter and leave it together, and call what it yields equally often. The policy's head runs on chunks
        of tokens: a strategy that shards it by itself must keep it whole from its first call to the end of the forward.
        """
        ...


@runtime_checkable
class GroupFactory(Protocol):
    """Optional for a strategy: collectives for a second thread, which never meet those of the first.

    A strategy without it gets a gloo group (:func:`rlhf_core.strategy.group.new_group`).
    """

    def new_group(self, timeout_s: float) -> Collectives:
        """Return collectives of the same ranks with a deadline of ``timeout_s`` each; all ranks call it together."""
        ...

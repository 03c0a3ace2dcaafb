"""What a strategy provides, split by who calls it, so that a function asks for no more than it uses; ``Strategy`` is
all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlhf_core.types.errors import PluginError

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

    def exchange_objects(self, outgoing: Sequence[Any]) -> list[Any]:
        """Send each rank the plain-Python value that is for it (one for each, this one included), and return what each
        has sent to this one, in rank order.

        ``[row[self.rank] for row in self.gather_objects(outgoing)]`` is right, and sends everything to everyone.
        """
        ...

    def barrier(self, what: str) -> None:
        """Wait for every rank; ``what`` is named if the deadline passes."""


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

    def clip_grad_norm(self, module: torch.nn.Module, max_norm: float) -> float:
        """Clip the global gradient norm and return it as it was before clipping."""
        ...


class OptimizerSharding(Protocol):
    """How the optimizer's state is saved and restored."""

    sharded: bool
    """True if each rank holds its own part of the optimizer state; a checkpoint then keeps one file per rank."""

    def optimizer_state(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """This rank's optimizer state (see ``sharded``); all ranks call it.

        Moments that are DTensors are written by parts, and another number of ranks can read them; of what is given as
        plain tensors each rank gets back its own, and a run goes on with as many ranks only.
        """
        ...

    def load_optimizer_state(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        """Restore what :meth:`optimizer_state` returned; DTensors come laid as the parameters are now."""


class Strategy(Collectives, ModelSharding, GradientSync, OptimizerSharding, Protocol):
    """How parameters, gradients and ranks are laid out. A sharded strategy implements this and no trainer changes."""


@runtime_checkable
class ShardedForward(Protocol):
    """Optional for a strategy: forwards without gradient (reference and old logprobs, critic values, held-out losses)
    while each rank keeps its shards. Without it :meth:`ModelSharding.gathered` is used, and every rank holds the
    frozen reference whole.
    """

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        """Place or shard a module that is never trained, its parameters laid as :meth:`ModelSharding.prepare` lays the
        trained ones: a reference that is synced is copied shard by shard.
        """
        ...

    def sharded_forward(self, module: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        """Context that yields what to call instead of a prepared module; afterwards every rank holds shards only.

        All ranks enter and leave it together, and call what it yields equally often. The policy's head runs on chunks
        of tokens: a strategy that shards it by itself must keep it whole from its first call to the end of the forward.
        """
        ...


@runtime_checkable
class TensorGathering(Protocol):
    """Optional for a strategy: whole weights one by one, so that rank 0 writes a model without holding all of it.
    Without it :meth:`ModelSharding.full_state` gives all at once.
    """

    def full_tensor(self, tensor: torch.Tensor, everywhere: torch.dtype | None = None) -> torch.Tensor | None:
        """A value of a prepared module's ``state_dict(keep_vars=True)``, whole, in rank 0's main memory; None on
        other ranks. With a type ``everywhere`` every rank gets it, on its device, in that type. All ranks call it with
        their parts of the same weight.
        """
        ...

    def full_shape(self, tensor: torch.Tensor) -> torch.Size:
        """Shape of the same, whole; nothing is gathered."""
        ...


class RunOptimizer(Protocol):
    """The optimizer of one prepared module. All ranks make the same calls."""

    def set_rates(self, factor: float, critic_factor: float) -> None:
        """Set the learning rates of the next step: those of the plan's groups times a factor."""

    def step(self, parts: Sequence[NormPart], max_norm: float) -> dict[str, float]:
        """Clip the gradient of each part to ``max_norm``, make a step, and drop the gradients.

        Returns the norms over all ranks before clipping, by the parts' metrics. If one is not finite, neither weights
        nor moments were changed.
        """
        ...

    def discard(self) -> None:
        """Drop the gradients without a step."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state (see :attr:`OptimizerSharding.sharded`)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""


@runtime_checkable
class ShardedLoading(Protocol):
    """Optional for a strategy: it prepares modules whose parameters have no memory yet (the meta device).

    Each rank then reads its part of every weight (:func:`rlhf_core.models.slices.read_weights`), and no rank ever holds
    the model whole. It must be a :class:`ShardedForward` too. ``prepare`` must call nothing that needs values. One that
    is an :class:`OptimizerOwner` reads them itself, in ``prepare_training`` and ``prepare_frozen``
    (:func:`rlhf_core.models.slices.read_elements`).
    """

    weights_device: torch.device
    """Of the weights between uses; not :attr:`ModelSharding.device` where they are offloaded."""


@runtime_checkable
class OptimizerOwner(Protocol):
    """Optional for a strategy: it makes the optimizer itself, when it shards the module.

    For one after whose preparation parameters are empty, flat or stepped elsewhere (ZeRO-3); otherwise the core steps
    torch's AdamW over the prepared parameters, and clips with :meth:`GradientSync.clip_grad_norm`.
    """

    def prepare_training(self, module: torch.nn.Module, plan: OptimizerPlan) -> tuple[torch.nn.Module, RunOptimizer]:
        """Shard the module, and make the optimizer of the plan's groups.

        Raises:
            UserError: it cannot keep a promise of :class:`RunOptimizer` (a clip of the critic's own, say).
        """
        ...


@runtime_checkable
class ModuleRelease(Protocol):
    """Optional for a strategy that keeps something of what it prepared: it lets go of a module that is done with before
    the run is, such as a member of a reward ensemble.
    """

    def release(self, module: torch.nn.Module) -> None:
        """Keep nothing of a prepared module, which is not called any more; all ranks call it."""


@runtime_checkable
class GroupFactory(Protocol):
    """Optional for a strategy: collectives for a second thread, which never meet those of the first. Without it a gloo
    group is made (:func:`rlhf_core.distributed.group.new_group`).
    """

    def new_group(self, timeout_s: float) -> Collectives:
        """Return collectives of the same ranks with a deadline of ``timeout_s`` each; all ranks call it together."""
        ...


@runtime_checkable
class RankZeroSections(Protocol):
    """Optional for a strategy: rank 0 works for longer than a collective may take (benchmarks, writing a model).
    Without it the others wait for rank 0 in the next collective, and its deadline holds.
    """

    def alone(self, what: str) -> AbstractContextManager[None]:
        """Context at whose end the others wait until rank 0 leaves it; all ranks enter it.

        If rank 0 raises inside, or ends, the others raise ``OtherRankFailed`` or ``DeadlineExceeded``.
        """
        ...


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """Parameters that learn alike.

    Example:
        OptimizerGroup(("model.lm_head.weight",), learning_rate=1e-6, weight_decay=0.1, apart=False)
    """

    names: tuple[str, ...]
    """As ``module.named_parameters()`` has them before the module is prepared."""
    learning_rate: float
    """Before the schedule."""
    weight_decay: float
    apart: bool
    """Of the critic, whose schedule is its own."""
    part: str = ""
    """What its parameters are to the optimizer, such as ``matrix``."""


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """Groups of named parameters, and what makes torch's optimizer of them."""

    groups: tuple[OptimizerGroup, ...]
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

    def optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Torch's optimizer of a prepared and unwrapped module.

        Raises:
            PluginError: a parameter of the plan is no longer there.
        """
        parameters = dict(module.named_parameters())
        lost = [name for group in self.groups for name in group.names if name not in parameters]
        if lost:
            raise PluginError(
                f"{len(lost)} trained parameters are not in the prepared module, such as '{lost[0]}'",
                why="the strategy renamed or replaced them",
                fix="let unwrap() return a module with the names it had, or implement prepare_training()",
            )
        return self.make(
            [
                {
                    "params": [parameters[name] for name in group.names],
                    "weight_decay": group.weight_decay,
                    "lr": group.learning_rate,
                    "base_lr": group.learning_rate,  # saved with the optimizer's state, as are the next two
                    "apart": group.apart,
                    "part": group.part,
                }
                for group in self.groups
            ]
        )


@dataclass(frozen=True, slots=True)
class NormPart:
    """A part of the module whose gradient is measured and clipped by itself."""

    metric: str
    """Name of its norm, such as ``grad_norm``."""
    module: torch.nn.Module
    learns: bool = True
    """False drops its gradient: neither weights nor moments change, and no norm is returned."""

"""Whole weights of a sharded module for rank 0, one tensor at a time, each when it is asked for.

Rank 0 writes a model tensor by tensor, and the others give their parts meanwhile: nobody holds more than its share and
one tensor, unless the code that writes keeps what it got.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from rlhf_core.distributed.alone import alone
from rlhf_core.models.tensor_files import Weights, WeightsOnDemand
from rlhf_core.plugins.strategy_protocols import Collectives, Strategy, TensorGathering
from rlhf_core.types.errors import OtherRankFailed

WORK = "using the whole weights"
"""What rank 0 does alone, for messages."""


def use_whole_weights(strategy: Strategy, module: torch.nn.Module, use: Callable[[Weights], object]) -> None:
    """Let rank 0 use the whole weights of a prepared module, or of a part of it; all ranks call it.

    Args:
        strategy: with :class:`~rlhf_core.plugins.strategy_protocols.TensorGathering` the weights that ``use`` is
        given are gathered one by one, whenever one is looked up; of any other all are gathered before.
        module: as ``Strategy.full_state`` takes it.
        use: called on rank 0 alone. It may call no collective operation.

    Raises:
        OtherRankFailed: on the other ranks, where ``use`` raised on rank 0.
    """
    if not isinstance(strategy, TensorGathering):
        weights = strategy.full_state(module)
        with alone(strategy, WORK):
            if strategy.rank == 0:
                use(weights)
        return
    gathering = Gathering(strategy, strategy, module.state_dict(keep_vars=True))
    if strategy.rank == 0:
        with gathering.leading() as weights:
            use(weights)
    else:
        gathering.follow()


class Gathering:
    """Rank 0 names a tensor, every rank gives its part of it.

    Args:
        ranks: exchange names.
        strategy: gathers.
        state: the module's ``state_dict(keep_vars=True)`` of this rank.
    """

    def __init__(self, ranks: Collectives, strategy: TensorGathering, state: Mapping[str, Any]) -> None:
        self.ranks, self.strategy, self.state = ranks, strategy, state

    def leading(self) -> GatheredWeights:
        """The weights, on rank 0: a context, at whose end the others stop giving."""
        return GatheredWeights(self)

    def follow(self) -> None:
        """Give this rank's part of every tensor that rank 0 names.

        Raises:
            OtherRankFailed: rank 0 ended with an error.
        """
        while isinstance(said := self._said(), str):
            self.strategy.whole_tensor(self.state[said])
        if said.error:
            raise OtherRankFailed(f"rank 0 failed while it used the whole weights: {said.error}")

    def _said(self) -> Any:
        """What rank 0 says next, after what it does alone between two weights."""
        with alone(self.ranks, WORK):
            pass
        return self.ranks.gather_objects(None)[0]


class Ended(NamedTuple):
    """What rank 0 says instead of a tensor's name.

    Example:
        Ended("OSError: [Errno 28] No space left on device")
    """

    error: str
    """Empty where there was none."""


class GatheredWeights(WeightsOnDemand):
    """Name -> whole weight in the host's memory. Each look-up is a collective operation: keep what is needed twice.

    Args:
        gathering: with the other ranks.
    """

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._apart = False
        """Whether an exchange broke off, so that nobody knows where the other ranks are."""
        self._lone_work = contextlib.ExitStack()

    def __getitem__(self, name: str) -> torch.Tensor:
        value = self._gathering.state[name]
        self._apart = True
        self._lone_work.close()
        self._gathering.ranks.gather_objects(name)
        whole = self._gathering.strategy.whole_tensor(value)
        self._apart = False
        self._work_alone()
        assert whole is not None, "rank 0 gets it"
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._gathering.state)

    def __len__(self) -> int:
        return len(self._gathering.state)

    def __contains__(self, name: object) -> bool:
        return name in self._gathering.state  # without gathering it

    def _work_alone(self) -> None:
        """Until the next weight is looked up."""
        self._lone_work.enter_context(alone(self._gathering.ranks, WORK))

    def __enter__(self) -> GatheredWeights:
        self._work_alone()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Let the other ranks go on, or fail too.

        After a look-up that raised they wait in another exchange than this one, and are left to it: it ends when this
        rank does, which it is about to.
        """
        if not self._apart:
            self._lone_work.close()
            self._gathering.ranks.gather_objects(Ended("" if kind is None else f"{kind.__name__}: {error}"))

    def like(self, name: str) -> torch.Tensor:
        """A tensor of the weight's shape and type, without its values: nothing is gathered."""
        value = self._gathering.state[name]
        return torch.empty(self._gathering.strategy.whole_shape(value), dtype=value.dtype, device="meta")

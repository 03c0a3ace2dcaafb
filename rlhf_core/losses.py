"""Losses and advantages: what they are given, what they return, and the maths that the trainers run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.training.functional import kl_value as kl_value
    from rlhf_core.types.batches import LossOutput as LossOutput
    from rlhf_core.types.batches import PairBatch as PairBatch
    from rlhf_core.types.batches import TokenBatch as TokenBatch
    from rlhf_core.types.batches import UnpairedBatch as UnpairedBatch
    from rlhf_core.types.rollouts import Advantages as Advantages
    from rlhf_core.types.rollouts import TokenValues as TokenValues

__getattr__, __dir__ = surface(__name__)

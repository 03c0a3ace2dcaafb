"""How many bytes a parameter costs, in our layouts and in the textbook's, and how strategies share them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Name = Literal[
    "single",
    "ddp",
    "fsdp",
    "hsdp",
    "zero1",
    "zero2",
    "zero3",
    "fsdp_offload",
    "zero1_offload",
    "zero2_offload",
    "zero3_offload",
    "zero3_offload_moments",
]
STRATEGIES: tuple[Name, ...] = get_args(Name)


@dataclass(frozen=True)
class Layout:
    """Bytes of one parameter that is trained."""

    name: str
    weight: int
    master: int
    gradient: int
    moments: int
    cast: int
    """Of the weights in the number type that computes, held while they are used."""

    @property
    def total(self) -> int:
        return self.weight + self.master + self.gradient + self.moments + self.cast


LAYOUTS = (
    Layout("fp32", 4, 0, 4, 8, 0),
    Layout("autocast", 4, 0, 4, 8, 2),
    Layout("bf16", 2, 0, 2, 4, 0),
    Layout("textbook mixed precision", 2, 4, 4, 8, 0),
)
"""Ours: float32 weights that compute in float32; the same computing in bfloat16 (``trainer.precision=bf16``), the
casts held from forward to backward; weights kept, trained and updated in bfloat16 (``model.dtype=bfloat16``). The last
is that of Rajbhandari et al. 2020 ("ZeRO", section 3.1) with gradients in float32, as Megatron-LM and DeepSpeed reduce
them: bfloat16 weights, a float32 master copy and moments."""


@dataclass(frozen=True)
class Shares:
    """The part of each kind of bytes that one rank holds, and what is gathered for the moment of use."""

    weights: float
    gradients: float
    moments: float
    gathers: bool
    """A decoder layer's weights at a time are whole, and the root group (embedding, head) in forward and backward."""
    moments_on_host: bool = False
    weights_on_host: bool = False
    stepped: float = 0.0
    """The part of a second copy of the trained weights, which is what the optimizer steps."""
    host_gradients: float = 0.0
    """Gradients in main memory, and what they and stepped weights are copied through, as a part of the trained weights:
    DeepSpeed has one buffer of that size beside them, in stage 2 a second one in which micro-batches add up."""
    keeps_root: bool = False
    """The root group stays whole, and gradients lie in one buffer for good (ZeRO's stage 3)."""

    @property
    def writes_parts(self) -> bool:
        """Whether a checkpoint gets each rank's moments as they lie, and no copy of them (FSDP)."""
        return self.gathers and not self.keeps_root


def shares(name: Name, ranks: int, ranks_per_node: int) -> Shares:
    """Of a strategy on so many ranks; HSDP shards among ``ranks_per_node``."""
    one = 1 / ranks
    if name == "hsdp":
        one = 1 / min(ranks, ranks_per_node)
    table: dict[str, Shares] = {
        "single": Shares(1, 1, 1, False),
        "ddp": Shares(1, 1, 1, False),
        "fsdp": Shares(one, one, one, True),
        "hsdp": Shares(one, one, one, True),
        "zero1": Shares(1, 1, one, False, stepped=one),
        "zero2": Shares(1, one, one, False, stepped=one),
        "zero3": Shares(one, one, one, True, stepped=one, keeps_root=True),
        "fsdp_offload": Shares(one, one, one, True, True, True, host_gradients=one),
        "zero1_offload": Shares(1, 1, one, False, True, stepped=one, host_gradients=2 * one),
        "zero2_offload": Shares(1, one, one, False, True, stepped=one, host_gradients=3 * one),
        "zero3_offload": Shares(one, one, one, True, True, True, one, 2 * one, keeps_root=True),
        "zero3_offload_moments": Shares(one, one, one, True, True, False, one, 2 * one, keeps_root=True),
    }
    return table[name]


__all__ = ["LAYOUTS", "STRATEGIES", "Layout", "Name", "Shares", "shares"]

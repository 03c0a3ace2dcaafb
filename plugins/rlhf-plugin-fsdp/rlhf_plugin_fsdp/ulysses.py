"""Ulysses: ranks of a group compute each micro-batch together, every rank a slice of its tokens; around attention an
all-to-all gives each rank some heads of all tokens instead (Jacobs et al. 2023, "DeepSpeed Ulysses").

A micro-batch belongs to one rank of the group, whose loss counts; on the others the loss is multiplied by 0. Exchanges
have their exact adjoints as backward passes, so that gradients summed over ranks are those of one process.

Suffixes: ``_N`` tokens of the row or wanted ones of it, ``_S`` tokens of a slice, ``_A`` heads, ``_D`` head size,
``_H`` hidden, ``_K`` kinds of values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rlhf_core.distributed import LocalStrategy
from rlhf_core.distributed.group import borrow_dummy_sample
from rlhf_core.models import ModelError, on_device
from rlhf_core.models.layers import packing
from rlhf_core.models.layers.chunked_head import head_logprobs
from rlhf_core.models.layers.prefix_sharing import distinct
from rlhf_core.models.layers.segments import Segment
from rlhf_core.models.layers.trunk_and_head import Ids, base_model, trunk_and_head
from rlhf_core.training.forward import completion_hidden, structure

DIVIDED = "divided_logprobs"
"""Attribute of a causal model by which ``completion_logprobs`` lets a group of ranks compute it."""


class Slice(NamedTuple):
    """What one rank computes of a packed row, which is filled up so that all slices are equally long."""

    ids: list[int]
    positions: list[int]
    segments: tuple[Segment, ...]
    """Of the whole row, the filler included."""
    start: int


def slice_row(row: packing.Row, size: int, member: int) -> Slice:
    """The ``member``-th of ``size`` slices.

    Example:
        Of ids 7 8 1 the first of two: ids 7 8, start 0; the second: ids 1 0, start 2.
    """
    length = -(-len(row.ids) // size)
    count, whole, start = len(row.ids), length * size, length * member
    filler = (Segment((count, whole)),) if whole > count else ()
    ids, positions = [*row.ids, *[0] * (whole - count)], [*row.positions, *range(whole - count)]
    return Slice(ids[start : start + length], positions[start : start + length], row.segments + filler, start)


class SequenceGroup:
    """The ranks that compute a micro-batch together; all ranks make their groups at the same time.

    Args:
        ranks: the run's collectives.
        size: ranks of a group, neighbours by rank.
    """

    def __init__(self, ranks: Any, size: int) -> None:
        self.ranks, self.size, self.member = ranks, size, ranks.rank % size
        self.group: Any = dist.new_subgroups(size, timeout=timedelta(seconds=ranks.timeout_s))[0]
        # never destroyed, for the reason that AcceleratedStrategy.close gives
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.group))

    def gather(self, value: Any) -> list[Any]:
        """Every member's plain value."""
        values: list[Any] = [None] * self.size
        with self.ranks._waiting("sharing micro-batches"):
            dist.all_gather_object(values, value, group=self.group)
        return values

    def turns(self, micros: Sequence[list[Any]]) -> list[tuple[list[Any], bool]]:
        """Micro-batches of the whole group, and whether each is this rank's; all groups make as many forwards."""
        counts, size = self.ranks.gather_objects(len(micros)), self.size
        totals = [sum(counts[n - n % size : n - n % size + size]) for n in range(len(counts))]
        every = [(micro, member == self.member) for member, own in enumerate(self.gather(micros)) for micro in own]
        dummy = borrow_dummy_sample(self.ranks, every[0][0] if every else None, [total > 0 for total in totals])
        return every + [(dummy or [], False)] * (max(totals) - len(every))

    @contextmanager
    def dividing(self, module: torch.nn.Module) -> Generator[None, None, None]:
        """Inside, logprobs of the module's causal models are computed by the group; all members enter it together."""
        models = causal_models(module)
        for model in models:
            model.__dict__[DIVIDED] = self.logprobs
        try:
            yield
        finally:
            for model in models:
                del model.__dict__[DIVIDED]

    def apart(self) -> AbstractContextManager[None]:
        """Every member makes as many forwards, each of its own samples; their layers are not divided anyway."""
        return nullcontext()

    def logprobs(
        self,
        model: torch.nn.Module,
        prompts: Ids,
        completions: Ids,
        targets_N: torch.Tensor,
        wanted: Sequence[int] | None,
        share_prefix: bool,
        packed: bool,
        options: Mapping[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``(logprobs_N, entropy_N or None)`` of the wanted completion tokens, on every member, with gradient.

        Raises:
            ModelError: the model cannot be packed, or changes its logits after its head.
        """
        check_structure(model, packed)
        share = share_prefix and len(distinct(prompts)[0]) < len(prompts)  # one segment needs no mask, two do
        parts, row = trunk_and_head(model), packing.pack(prompts, completions, share)
        own, device = slice_row(row, self.size, self.member), targets_N.device
        places = row.target_positions if wanted is None else [row.target_positions[n] for n in wanted]
        targets_N = targets_N if wanted is None else targets_N[on_device(wanted, device)]
        here = [n for n, place in enumerate(places) if own.start <= place < own.start + len(own.ids)]
        here_S = on_device(here, device)
        with self.ranks._waiting("exchanging heads of attention"):
            hidden_SH = self._trunk(parts.trunk, own, device)
            fed_SH = hidden_SH[on_device([places[n] - own.start for n in here], device)]
            values = [v for v in head_logprobs(fed_SH, parts.head, targets_N[here_S], **options) if v is not None]
            values_KS = torch.stack(values)
            zeros_KN = values_KS.new_zeros((len(values), len(places)))
            values_KN = Sum.apply(zeros_KN.index_copy(1, here_S, values_KS), self.group)
        return values_KN[0], values_KN[1] if options["entropy"] else None

    def _trunk(self, trunk: Any, own: Slice, device: torch.device) -> torch.Tensor:
        """``hidden_SH`` of the slice."""
        from transformers import AttentionInterface

        AttentionInterface.register(packing.NAME, attend)
        mask: Any = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device).as_subclass(packing.Segments)
        mask.segments, mask.prepared, mask.sequence_group = own.segments, {}, self
        ids, positions = on_device([own.ids], device), on_device([own.positions], device)
        out = trunk(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)
        return out.last_hidden_state[0]

    def by_heads(self, states: torch.Tensor) -> torch.Tensor:
        """Of all heads of a slice ``[1, A, S, D]`` some heads of the whole row ``[1, A / n, N, D]``; fewer heads than
        ranks are repeated."""
        heads = states.shape[1]
        if heads % self.size and self.size % heads:
            raise ModelError(f"{heads} heads of attention cannot be divided among {self.size} ranks")
        if heads < self.size:
            states = states.repeat_interleave(self.size // heads, dim=1)
        parts: Any = _Exchange.apply(states[0].unflatten(0, (self.size, -1)), self.group)
        return parts.transpose(0, 1).flatten(1, 2)[None]

    def by_tokens(self, attended: torch.Tensor) -> torch.Tensor:
        """The way back: ``[1, N, A / n, D]`` gives ``[1, S, A, D]``."""
        parts: Any = _Exchange.apply(attended[0].unflatten(0, (self.size, -1)), self.group)
        return parts.transpose(0, 1).flatten(1, 2)[None]


class Rehearsal(SequenceGroup):
    """The last rank of a group without the others, for a memory plan: what it is sent is what it sent."""

    def __init__(self, size: int) -> None:
        self.ranks, self.size, self.member, self.group = LocalStrategy(), size, size - 1, None


def causal_models(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Transformers' causal models in a module, whose sequences can be divided."""
    return [part for part in module.modules() if getattr(part, "get_output_embeddings", lambda: None)() is not None]


def trunks(module: torch.nn.Module) -> list[Any]:
    """The decoders of a module's causal models, each once."""
    return list({id(trunk): trunk for trunk in (trunk_and_head(m).trunk for m in causal_models(module))}.values())


def undivided_logprobs(
    model: torch.nn.Module,
    prompts: Ids,
    completions: Ids,
    targets_N: torch.Tensor,
    wanted: Sequence[int] | None,
    share_prefix: bool,
    packed: bool,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """``[K, N]``: logprobs, and entropies if asked for, of the wanted completion tokens, not cut into slices.

    Raises:
        ModelError: the model changes its logits after its head.
    """
    if not structure(model).split:
        raise ModelError(
            f"strategy.tensor_parallel cannot be used with {type(base_model(model)).__name__}",
            why="its logits are not its head applied to its trunk's hidden states",
            fix="leave strategy.tensor_parallel out",
        )
    hidden_NH = completion_hidden(model, prompts, completions, share_prefix, packed)
    if wanted is not None:
        wanted_N = on_device(wanted, targets_N.device)
        hidden_NH, targets_N = hidden_NH[wanted_N], targets_N[wanted_N]
    values = head_logprobs(hidden_NH, trunk_and_head(model).head, targets_N, **options)
    return torch.stack([v for v in values if v is not None])


def check_structure(model: torch.nn.Module, packed: bool) -> None:
    """Refuse a model whose tokens could meet elsewhere than in attention, which packed rows would show."""
    allows, base = structure(model), base_model(model)
    reasons = {
        "its logits are not its head applied to its trunk's hidden states": not allows.split,
        "packing is off, or packed rows gave other hidden states than single sequences": not (allows.pack and packed),
        "routers of experts are watched, row by row": "watch_rows" in base.__dict__,
    }
    if why := next((why for why, applies in reasons.items() if applies), ""):
        raise ModelError(
            f"strategy.sequence_parallel cannot divide the sequences of {type(base).__name__}",
            why=why,
            fix="leave strategy.sequence_parallel out",
        )


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Packed attention as transformers calls it; of a slice each rank attends with its heads over the whole row."""
    group: SequenceGroup | None = getattr(mask, "sequence_group", None)
    if group is None:
        return packing.attend(module, query, key, value, mask, **options)
    dtype = packing.computed_in(query)
    query, key, value = (group.by_heads(states.to(dtype)) for states in (query, key, value))
    return group.by_tokens(packing.attend(module, query, key, value, mask, **options)[0]), None


class _Exchange(torch.autograd.Function):
    """The n-th of equal parts goes to rank n. The matrix of (sender, receiver) is transposed, so the adjoint is the
    same exchange."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        if group is None:
            return parts.clone(memory_format=torch.contiguous_format)
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Exchange.forward(ctx, grads[0], ctx.group), None


class Sum(torch.autograd.Function):
    """Adds over ranks; what is made of the sum on any rank reaches every addend, so the adjoint is a sum too."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group, total = group, values.clone(memory_format=torch.contiguous_format)
        if group is not None:
            dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Sum.forward(ctx, grads[0], ctx.group), None


class GroupForward:
    """Stands for a module in forwards without gradient: the group computes the micro-batch of each member in turn."""

    def __init__(self, module: torch.nn.Module, group: SequenceGroup) -> None:
        self.module, self.group = module, group

    def __call__(self, micro: Sequence[Any], *compute: Callable[..., Any]) -> Any:
        """This rank's result. A probe (``[None]``) reads what its rank alone has, and is computed by it alone."""
        if all(sample is None for sample in micro):
            with self.group.apart():
                return self.module(micro, *compute)
        with self.group.dividing(self.module):
            results = [self.module(other, *compute) for other in self.group.gather(micro)]
        return results[self.group.member]

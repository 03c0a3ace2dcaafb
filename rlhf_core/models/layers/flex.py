"""Attention of a packed row in one call per layer, by torch's FlexAttention: any torch from 2.6 on, compiled on CUDA.

Every query sees two stretches of the row: of its prompt, and of its own segment up to itself; a window makes both
begin later. Where they begin and end is known on the host, so that the mask's blocks are counted there: nothing as
large as the row squared is made, and nothing waits for the device.

Suffixes: ``_N`` tokens of the row, ``_R`` blocks of queries, ``_C`` blocks of keys, ``_A`` heads, ``_D`` head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from rlhf_core.models.layers.handed_over import on_device
from rlhf_core.models.layers.segments import Segment

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Queries and keys of a block, FlexAttention's default."""


class Seen(NamedTuple):
    """What each query sees: keys ``own_N .. itself`` and ``prompt_N .. end_N - 1``; int64 on the host."""

    own_N: np.ndarray
    prompt_N: np.ndarray
    end_N: np.ndarray


def seen_by(segments: Sequence[Segment], window: int | None) -> Seen:
    """The two stretches of keys that each token of a row sees.

    Args:
        segments: of the row, in the order in which they lie, without a gap.
        window: most tokens that one sees, itself included; None is no limit.
    """
    parts: list[Seen] = []
    for segment in segments:
        (start, stop), (prompt, end) = segment.own, segment.prompt
        places = np.arange(start, stop)
        own, first = np.full_like(places, start), np.full_like(places, prompt)
        if window is not None:
            own = np.maximum(own, places - window + 1)
            first = np.minimum(np.maximum(first, places - start + end - window + 1), end)
        parts.append(Seen(own, first, np.full_like(places, end)))
    return Seen(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def block_mask(segments: Sequence[Segment], window: int | None, device: torch.device) -> BlockMask:
    """The mask of a row for ``flex_attention``, on its device; nothing waits for the device."""
    from torch.nn.attention.flex_attention import BlockMask

    seen = seen_by(segments, window)
    length = len(seen.own_N)
    part_RC, whole_RC = _blocks(seen)
    ordered = [_ordered(blocks, device) for blocks in (part_RC, whole_RC, part_RC.T, whole_RC.T)]
    names = ("kv", "full_kv", "q", "full_q")
    tables = {f"{name}_num_blocks": count for name, (count, _) in zip(names, ordered, strict=True)}
    tables |= {f"{name}_indices": places for name, (_, places) in zip(names, ordered, strict=True)}
    # kernels read a whole block of queries, the last one past the row's end too
    fill = (0, -length % BLOCK)
    edges = (on_device(np.pad(edge_N, fill), device, torch.int32) for edge_N in seen)
    made: Any = BlockMask
    return made(seq_lengths=(length, length), BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=_sees(*edges), **tables)


def _sees(own_N: torch.Tensor, prompt_N: torch.Tensor, end_N: torch.Tensor) -> Callable[..., torch.Tensor]:
    def sees(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        own = (own_N[query] <= key) & (key <= query)
        return own | ((prompt_N[query] <= key) & (key < end_N[query]))

    return sees


def _blocks(seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """Blocks ``[R, C]`` of which something is seen but not all, and those that every query sees whole."""
    length = len(seen.own_N)
    count = -(-length // BLOCK)
    places_N, first_C = np.arange(length)[:, None], np.arange(count)[None] * BLOCK
    any_NC, all_NC = np.zeros((length, count), np.bool_), np.zeros((length, count), np.bool_)
    for begin_N, end_N in ((seen.own_N[:, None], places_N + 1), (seen.prompt_N[:, None], seen.end_N[:, None])):
        any_NC |= (begin_N < end_N) & (begin_N < first_C + BLOCK) & (first_C < end_N)
        all_NC |= (begin_N <= first_C) & (first_C + BLOCK <= end_N)
    rows = ((0, -length % BLOCK), (0, 0))
    any_RC, all_RC = (np.pad(each, rows).reshape(count, BLOCK, count) for each in (any_NC, all_NC))
    any_RC, all_RC = np.logical_or.reduce(any_RC, axis=1), np.logical_and.reduce(all_RC, axis=1)
    return any_RC & ~all_RC, all_RC


def _ordered(blocks_RC: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """``[1, 1, R]`` blocks of each row, and ``[1, 1, R, C]`` their columns, the others after them; int32."""
    columns_RC = np.argsort(~blocks_RC, axis=-1, kind="stable")
    counts = on_device(blocks_RC.sum(axis=-1)[None, None], device, torch.int32)
    return counts, on_device(columns_RC[None, None], device, torch.int32)


def attend_flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask, scaling: float | None
) -> torch.Tensor:
    """Attention of every token to what the mask lets it see.

    Args:
        query: ``[1, A, N, D]``; keys and values may have fewer heads.
        key: as the query.
        value: as the query.
        mask: of :func:`block_mask`.
        scaling: of the scores; None is ``D ** -0.5``.

    Returns:
        ``[1, N, A, D]``.
    """
    grouped = query.shape[1] != key.shape[1]
    operator = _compiled(query.shape[1], key.shape[1], query.shape[3]) if query.is_cuda else _flex
    return operator(query, key, value, mask, scaling, grouped).transpose(1, 2).contiguous()


def _flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scale: Any, grouped: bool) -> Any:
    """Not compiled it makes all scores at once, and torch gives it no backward on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)


@functools.cache
def _compiled(*sizes: int, backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """One for rows of every length and every window.

    Sizes of heads are compiled in, and dynamo gives up a function that it has compiled a few times; it counts by code
    object, so that every model has its own.
    """
    own = FunctionType(_flex.__code__.replace(), _flex.__globals__, f"flex_{'_'.join(map(str, sizes))}")
    return torch.compile(own, dynamic=True, backend=backend)

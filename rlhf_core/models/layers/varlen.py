"""Attention of a packed row in one call per layer, by an operator for sequences of different length.

The operator takes all segments at once: the queries of each are a sequence, and its keys are those of the prompt that
it continues and its own, end to end. A segment that continues a prompt has more keys than queries; its last query then
sees its last key, which torch's ``varlen_attn`` and flash-attn from 2.1 on (its changelog: "bottom right corner") do.

Suffixes: ``_N`` tokens of the row, ``_K`` keys of all segments, ``_A`` heads, ``_D`` head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from rlhf_core.models.layers.handed_over import on_device
from rlhf_core.models.layers.segments import Segment


@dataclass(frozen=True)
class Layout:
    """Where the sequences of a row begin, on the device of the row."""

    query_starts: torch.Tensor
    """int32, one more than segments."""
    key_starts: torch.Tensor
    """int32, one more than segments."""
    key_places_K: torch.Tensor | None
    """Places in the row of the keys of all segments; None where they are the row itself."""
    longest_query: int
    longest_key: int


Operator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layout, "float | None", "int | None"], torch.Tensor]
"""Of ``query_NAD``, ``key_KAD``, ``value_KAD``, the layout, scaling and window; gives ``attended_NAD``."""


def layout(segments: Sequence[Segment], device: torch.device) -> Layout:
    """Lay out the segments of a row; nothing waits for the device."""
    queries = [stop - start for start, stop in (segment.own for segment in segments)]
    keys = [size + segment.prompt[1] - segment.prompt[0] for size, segment in zip(queries, segments, strict=True)]
    places = None
    if keys != queries:
        spans = [span for segment in segments for span in (segment.prompt, segment.own)]
        places = on_device([place for span in spans for place in range(*span)], device)
    return Layout(_starts(queries, device), _starts(keys, device), places, max(queries), max(keys))


def _starts(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    return on_device([0, *accumulate(sizes)], device, torch.int32)


def attend_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    row: Layout,
    scaling: float | None,
    window: int | None,
    operator: Operator,
) -> torch.Tensor:
    """Causal attention of every segment to its prompt and itself.

    Args:
        query: ``[1, A, N, D]``; keys and values may have fewer heads.
        key: as the query.
        value: as the query.
        row: of :func:`layout`.
        scaling: of the scores; None is ``D ** -0.5``.
        window: most tokens that one sees, itself included; None is no limit.
        operator: :func:`by_torch` or :func:`by_flash_attn`.

    Returns:
        ``[1, N, A, D]``.
    """
    query_NAD, key_KAD, value_KAD = (x[0].transpose(0, 1) for x in (query, key, value))
    if row.key_places_K is not None:
        key_KAD, value_KAD = (x.index_select(0, row.key_places_K) for x in (key_KAD, value_KAD))
    query_NAD, key_KAD, value_KAD = (x.contiguous() for x in (query_NAD, key_KAD, value_KAD))
    return operator(query_NAD, key_KAD, value_KAD, row, scaling, window).unsqueeze(0)


def by_torch(
    query_NAD: torch.Tensor,
    key_KAD: torch.Tensor,
    value_KAD: torch.Tensor,
    row: Layout,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """``torch.nn.attention.varlen.varlen_attn`` of torch 2.10 and later; the first had no grouped heads."""
    from torch.nn.attention.varlen import varlen_attn

    varlen: Any = varlen_attn
    grouped = {"enable_gqa": True} if query_NAD.shape[1] != key_KAD.shape[1] else {}
    return varlen(
        query_NAD,
        key_KAD,
        value_KAD,
        row.query_starts,
        row.key_starts,
        row.longest_query,
        row.longest_key,
        scale=scaling,
        window_size=_reach(window),
        **grouped,
    )


def by_flash_attn(
    query_NAD: torch.Tensor,
    key_KAD: torch.Tensor,
    value_KAD: torch.Tensor,
    row: Layout,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """``flash_attn.flash_attn_varlen_func`` of flash-attn 2.4.1 and later; heads may be grouped without being told.

    Its backward adds in the order in which blocks end, unless it is told to be ``deterministic``.
    """
    from flash_attn import flash_attn_varlen_func  # pyright: ignore

    flash: Any = flash_attn_varlen_func
    return flash(
        query_NAD,
        key_KAD,
        value_KAD,
        cu_seqlens_q=row.query_starts,
        cu_seqlens_k=row.key_starts,
        max_seqlen_q=row.longest_query,
        max_seqlen_k=row.longest_key,
        softmax_scale=scaling,
        causal=True,
        window_size=_reach(window),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _reach(window: int | None) -> tuple[int, int]:
    """Tokens to the left and right of itself that a query sees, as both operators count them; -1 is no limit."""
    return (-1 if window is None else window - 1, 0)

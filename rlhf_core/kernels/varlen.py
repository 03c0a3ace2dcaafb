"""Attention of a packed row in one call per layer, by torch's operator for sequences of different length.

On a GPU a call per segment costs a launch each. The operator takes all segments at once: the queries of each are a
sequence, and its keys are those of the prompt that it continues and its own, end to end. It runs on CUDA devices of
compute capability 8.0 and above, in float16 and bfloat16; elsewhere packing calls ``sdpa`` by segment.

Suffixes: ``_N`` tokens of the row, ``_K`` keys of all segments, ``_A`` heads, ``_D`` head size.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Segment:
    """Places in the row: its own, and those of the prompt that it continues (none: ``prompt == (0, 0)``).

    Example:
        Segment((5, 9), (0, 5))  # tokens 5..8 after the prompt in 0..4
    """

    own: tuple[int, int]
    prompt: tuple[int, int] = (0, 0)


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


def layout(segments: Sequence[Segment], device: torch.device) -> Layout:
    """Lay out the segments of a row; nothing waits for the device."""
    queries = [stop - start for start, stop in (segment.own for segment in segments)]
    keys = [size + segment.prompt[1] - segment.prompt[0] for size, segment in zip(queries, segments, strict=True)]
    places = None
    if keys != queries:
        spans = [span for segment in segments for span in (segment.prompt, segment.own)]
        places = torch.tensor([place for span in spans for place in range(*span)], device=device)
    return Layout(_starts(queries, device), _starts(keys, device), places, max(queries), max(keys))


def _starts(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)


def attend_row(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    row: Layout,
    scaling: float | None,
    window: int | None,
    operator: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Causal attention of every segment to its prompt and itself.

    Args:
        query: ``[1, A, N, D]``; keys and values may have fewer heads.
        key: as the query.
        value: as the query.
        row: of :func:`layout`.
        scaling: of the scores; None is ``D ** -0.5``.
        window: most tokens that one sees, itself included; None is no limit.
        operator: None takes torch's ``varlen_attn``.

    Returns:
        ``[1, N, A, D]``.
    """
    query_NAD, key_KAD, value_KAD = (x[0].transpose(0, 1) for x in (query, key, value))
    if row.key_places_K is not None:
        key_KAD, value_KAD = (x.index_select(0, row.key_places_K) for x in (key_KAD, value_KAD))
    attended_NAD = (operator or _operator())(
        query_NAD.contiguous(),
        key_KAD.contiguous(),
        value_KAD.contiguous(),
        row.query_starts,
        row.key_starts,
        row.longest_query,
        row.longest_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended_NAD.unsqueeze(0)


def _operator() -> Callable[..., Any]:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def computed_in(query: torch.Tensor) -> torch.dtype:
    """Number type in which attention computes: autocast's where that is on, as of ``sdpa``, else the tensor's own."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def possible(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the operator runs on tensors like these, forward and backward; tried once for each kind."""
    dtype = computed_in(query)
    if query.device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    if not query.shape[3] == key.shape[3] == value.shape[3]:
        return False
    return _runs(query.device, dtype, query.shape[1], key.shape[1], query.shape[3])


@functools.cache
def _runs(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, head_size: int) -> bool:
    try:
        # whoever asks first, and however it computes, the answer is that for training
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            row = layout([Segment((0, 1)), Segment((1, 3), (0, 1))], device)
            query, key, value = (
                torch.zeros((1, count, 3, head_size), dtype=dtype, device=device, requires_grad=True)
                for count in (heads, key_heads, key_heads)
            )
            attend_row(query, key, value, row, None, None).sum().backward()
    except Exception as error:  # whatever this build, device or head size lacks: segment by segment works everywhere
        log.info("packed attention runs segment by segment: torch's varlen_attn on %s: %s", device, error)
        return False
    return True

"""Segments of a packed row, and attention to them: one by one, which faster kernels are compared with, or in one call.

Suffixes: ``_N`` tokens of the row, ``_S`` positions of one segment, ``_K`` keys it sees, or keys of all segments,
``_R`` blocks of queries, ``_C`` blocks of keys, ``_A`` heads, ``_D`` head size.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from rlhf_core.models.layers.trunk_and_head import on_device
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True, slots=True)
class Segment:
    """Places in the row: its own, and those of the prompt that it continues (none: ``prompt == (0, 0)``)."""

    own: tuple[int, int]
    prompt: tuple[int, int] = (0, 0)


def attend_by_segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Sequence[Segment],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention ``[1, N, A, D]`` of every segment to its prompt and itself, of a query ``[1, A, N, D]``
    (keys and values may have fewer heads). ``window`` is the most tokens that one sees, itself included. Segments lie
    in their order, without a gap.
    """
    lengths = [stop - start for start, stop in (segment.own for segment in segments)]
    # A slice of the row would get a gradient as long as the row, for every segment; split gives each its own length.
    queries, keys, values = (row.split(lengths, dim=2) for row in (query, key, value))
    first = {segment.own[0]: n for n, segment in enumerate(segments)}
    last = {segment.own[1]: n for n, segment in enumerate(segments)}
    out: list[torch.Tensor] = []
    for n, segment in enumerate(segments):
        start, stop = segment.prompt
        seen = [n] if start == stop else [*range(first[start], last[stop] + 1), n]
        out.append(_attend_one(queries[n], [keys[i] for i in seen], [values[i] for i in seen], scaling, window))
    return torch.cat(out, dim=2).transpose(1, 2).contiguous()


def _attend_one(
    query_SD: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attention of one segment ``[1, A, S, D]`` to its prompt, if there is one, and itself."""
    key_KD, value_KD = (row[0] if len(row) == 1 else torch.cat(row, dim=2) for row in (keys, values))
    own, seen = query_SD.shape[2], key_KD.shape[2]
    before = seen - own
    grouped = query_SD.shape[1] != key_KD.shape[1]
    limited, mask_SK = window is not None and window < seen, None
    if before or limited:
        mask_SK = torch.ones((own, seen), dtype=torch.bool, device=key_KD.device).tril_(before)
    if mask_SK is not None and window is not None and limited:
        mask_SK = mask_SK.triu_(before - window + 1)
    return F.scaled_dot_product_attention(
        query_SD, key_KD, value_KD, attn_mask=mask_SK, is_causal=mask_SK is None, scale=scaling, enable_gqa=grouped
    )


@dataclass(frozen=True)
class Layout:
    """Where the sequences of a row begin, on the device of the row."""

    query_starts: torch.Tensor
    """int32, one more than segments."""
    key_starts: torch.Tensor
    """int32, one more than segments."""
    key_positions_K: torch.Tensor | None
    """Places in the row of the keys of all segments; None where they are the row itself."""
    longest_query: int
    longest_key: int


Operator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layout, "float | None", "int | None"], torch.Tensor]
"""Of ``query_NAD``, ``key_KAD``, ``value_KAD``, the layout, scaling and window; gives ``attended_NAD``."""


def layout(segments: Sequence[Segment], device: torch.device) -> Layout:
    """Lay out the segments of a row; nothing waits for the device."""
    queries = [stop - start for start, stop in (segment.own for segment in segments)]
    keys = [size + segment.prompt[1] - segment.prompt[0] for size, segment in zip(queries, segments, strict=True)]
    positions = None
    if keys != queries:
        spans = [span for segment in segments for span in (segment.prompt, segment.own)]
        positions = on_device([position for span in spans for position in range(*span)], device)
    return Layout(_starts(queries, device), _starts(keys, device), positions, max(queries), max(keys))


def _starts(sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    return on_device([0, *accumulate(sizes)], device, torch.int32)


def attend_row(
    operator: Operator, *inputs: torch.Tensor, row: Layout, scaling: float | None, window: int | None
) -> torch.Tensor:
    """:func:`attend_by_segment` of query, key and value, by ``operator``: :func:`by_torch` or :func:`by_flash_attn`."""
    query_NAD, key_KAD, value_KAD = (x[0].transpose(0, 1) for x in inputs)
    if row.key_positions_K is not None:
        key_KAD, value_KAD = (x.index_select(0, row.key_positions_K) for x in (key_KAD, value_KAD))
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
    """``torch.nn.attention.varlen.varlen_attn`` of torch 2.10 and later."""
    from torch.nn.attention.varlen import varlen_attn

    varlen: Any = varlen_attn
    grouped = {"enable_gqa": True} if query_NAD.shape[1] != key_KAD.shape[1] and _says_grouped(varlen) else {}
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


@functools.cache
def _says_grouped(varlen: Callable[..., Any]) -> bool:
    """Whether it wants to be told of fewer key heads; until torch 2.11 it was not."""
    return "enable_gqa" in inspect.signature(varlen).parameters


def by_flash_attn(
    query_NAD: torch.Tensor,
    key_KAD: torch.Tensor,
    value_KAD: torch.Tensor,
    row: Layout,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """``flash_attn.flash_attn_varlen_func`` of flash-attn 2.4.1 and later; heads may be grouped without being told."""
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


BLOCK = 128
"""Queries and keys of a block, FlexAttention's default."""


class VisibleKeys(NamedTuple):
    """What each query sees: keys ``own_N .. itself`` and ``prompt_N .. end_N - 1``; int64 on the host."""

    own_N: np.ndarray
    prompt_N: np.ndarray
    end_N: np.ndarray


def visible_keys(segments: Sequence[Segment], window: int | None) -> VisibleKeys:
    """The two stretches of keys that each token of a row sees."""
    parts: list[VisibleKeys] = []
    for segment in segments:
        (start, stop), (prompt, end) = segment.own, segment.prompt
        positions = np.arange(start, stop)
        own, first = np.full_like(positions, start), np.full_like(positions, prompt)
        if window is not None:
            own = np.maximum(own, positions - window + 1)
            first = np.minimum(np.maximum(first, positions - start + end - window + 1), end)
        parts.append(VisibleKeys(own, first, np.full_like(positions, end)))
    return VisibleKeys(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def block_mask(segments: Sequence[Segment], window: int | None, device: torch.device) -> BlockMask:
    """The mask of a row for ``flex_attention``, on its device; nothing waits for the device."""
    from torch.nn.attention.flex_attention import BlockMask

    seen = visible_keys(segments, window)
    length = len(seen.own_N)
    part_RC, whole_RC = _blocks(seen)
    ordered = [_ordered(blocks, device) for blocks in (part_RC, whole_RC, part_RC.T, whole_RC.T)]
    names = ("kv", "full_kv", "q", "full_q")
    tables = {f"{name}_num_blocks": count for name, (count, _) in zip(names, ordered, strict=True)}
    tables |= {f"{name}_indices": indices for name, (_, indices) in zip(names, ordered, strict=True)}
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


def _blocks(seen: VisibleKeys) -> tuple[np.ndarray, np.ndarray]:
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
    """Attention of every token to what the mask of :func:`block_mask` lets it see, as :func:`attend_by_segment`."""
    grouped = query.shape[1] != key.shape[1]
    operator = _compiled(query.shape[1], key.shape[1], query.shape[3]) if query.is_cuda else _flex
    return operator(query, key, value, mask, scaling, grouped).transpose(1, 2).contiguous()


def _flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scale: Any, grouped: bool) -> Any:
    """Not compiled it makes all scores at once, and torch gives it no backward on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)


@functools.cache
def _compiled(*sizes: int, backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """A function of its own for each set of head sizes: dynamo gives up one that it has compiled a few times."""
    own = FunctionType(_flex.__code__.replace(), _flex.__globals__, f"flex_{'_'.join(map(str, sizes))}")
    return torch.compile(own, dynamic=True, backend=backend)


@contextlib.contextmanager
def repeatable_gradients(device: torch.device) -> Generator[None, None, None]:
    """Where a run is to repeat, let torch raise for what cannot: only then attention adds gradients in one order."""
    wanted, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if device.type != "cuda" or not (wanted and warns):
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        raise ConfigError(
            "deterministic=true is not possible: an operation of model or loss has no deterministic gradient on CUDA",
            why=str(error).splitlines()[0],
            fix="--set deterministic=false, or replace the operation",
        ) from error
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)

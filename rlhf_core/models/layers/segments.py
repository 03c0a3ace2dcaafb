"""Segments of a packed row, and attention to them one by one: what every faster way is compared with.

Suffixes: ``_S`` positions of one segment, ``_K`` keys it sees, ``_A`` heads, ``_D`` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Segment:
    """Places in the row: its own, and those of the prompt that it continues (none: ``prompt == (0, 0)``).

    Example:
        Segment((5, 9), (0, 5))  # tokens 5..8 after the prompt in 0..4
    """

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
    """Causal attention of every segment to its prompt and itself, a call of ``sdpa`` each.

    Args:
        query: ``[1, A, N, D]``; keys and values may have fewer heads.
        key: as the query.
        value: as the query.
        segments: of the row, in the order in which they lie, without a gap.
        scaling: of the scores; None is ``D ** -0.5``.
        window: most tokens that one sees, itself included; None is no limit.

    Returns:
        ``[1, N, A, D]``.
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
    reach = None if window is None or window >= seen else window
    if not before and reach is None:
        return F.scaled_dot_product_attention(
            query_SD, key_KD, value_KD, is_causal=True, scale=scaling, enable_gqa=grouped
        )
    mask_SK = torch.ones((own, seen), dtype=torch.bool, device=key_KD.device).tril_(before)
    if reach is not None:
        mask_SK = mask_SK.triu_(before - reach + 1)
    return F.scaled_dot_product_attention(
        query_SD, key_KD, value_KD, attn_mask=mask_SK, scale=scaling, enable_gqa=grouped
    )

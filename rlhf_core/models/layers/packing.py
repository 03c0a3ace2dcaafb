"""Sequences end to end in one row, without padding; no token sees another sequence.

A row holds *segments*. Each attends causally to itself and, with prefix sharing, to the whole of the prompt that it
continues: the prompt of G completions is one segment, every completion another. Everything in a decoder but its
attention works on single tokens, so that only attention has to know the segments: :func:`attend` runs it segment by
segment on exactly their tokens (no mask as large as the row squared, no cache, so activation checkpointing works), or
in one call where the device has an operator for it (:mod:`rlhf_core.models.layers.row_attention`).

It is registered with transformers as an attention implementation that is ``sdpa`` for every other forward. The
segments travel as the attention mask, a 4-D tensor that transformers hands to every layer as it is.

Suffixes: ``_N`` tokens of the row, ``_A`` heads, ``_D`` head size, ``_H`` hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core.models.layers.handed_over import on_device
from rlhf_core.models.layers.padded import Ids
from rlhf_core.models.layers.row_attention import computed_in, way_for
from rlhf_core.models.layers.segments import Segment, attend_by_segment
from rlhf_core.models.layers.trunk_and_head import trunk_and_head

NAME = "rlhf_packed"
CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""What some models ask of their attention besides a scale and a window."""


class Segments(torch.Tensor):
    """Stands where the attention mask would, and carries the segments of the row."""

    segments: tuple[Segment, ...]
    """In the order in which they lie, without a gap; a prompt is one of them, or some side by side."""
    prepared: dict[tuple[str, int | None], Any]
    """The same on the device, by the way of attending and the window; made by the first layer that wants it."""


@dataclass(frozen=True)
class Row:
    """One packed row and where its completions are predicted.

    Example:
        prompt (7, 8), completions (1, 2) and (3,), shared: ids 7 8 1, positions 0 1 2, predicting 1 2 1
    """

    ids: list[int]
    positions: list[int]
    """Within each sequence."""
    segments: tuple[Segment, ...]
    predicting: list[int]
    """Places whose output predicts each completion token, completion after completion."""


def pack(prompts: Ids, completions: Ids, share: bool) -> Row:
    """Lay sequences end to end; the last token of each predicts nothing and is left out.

    Args:
        prompts: token ids, one prompt per completion.
        completions: token ids.
        share: equal prompts are laid once.
    """
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    predicting: list[int] = []
    prompt_spans: dict[tuple[int, ...], tuple[int, int]] = {}

    def lay(tokens: list[int], first: int, prompt: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        span = len(ids), len(ids) + len(tokens)
        ids.extend(tokens)
        positions.extend(range(first, first + len(tokens)))
        if tokens:
            segments.append(Segment(span, prompt))
        return span

    for prompt, completion in zip(prompts, completions, strict=True):
        fed, key = list(completion[:-1]), tuple(prompt)
        if share:
            if key not in prompt_spans:
                prompt_spans[key] = lay(list(prompt), 0)
            start = lay(fed, len(prompt), prompt_spans[key])[0]
            last = prompt_spans[key][1] - 1
        else:
            last = lay([*prompt, *fed], 0)[0] + len(prompt) - 1
            start = last + 1
        predicting += [last, *range(start, start + len(fed))][: len(completion)]
    return Row(ids, positions, tuple(segments), predicting)


def packed_hidden(model: torch.nn.Module, prompts: Ids, completions: Ids, share: bool) -> torch.Tensor:
    """Return ``hidden_NH`` as its plain equivalent :func:`rlhf_core.models.layers.padded.padded_hidden` does."""
    return row_hidden(trunk_and_head(model).trunk, pack(prompts, completions, share))


def row_hidden(trunk: torch.nn.Module, row: Row) -> torch.Tensor:
    """Hidden states ``[len(row.predicting), H]`` at the places of a row that predict."""
    device = next(trunk.parameters()).device
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device).as_subclass(Segments)
    mask.segments, mask.prepared = row.segments, {}
    out = trunk(
        input_ids=on_device([row.ids], device),
        position_ids=on_device([row.positions], device),
        attention_mask=mask,
        use_cache=False,
    )
    return out.last_hidden_state[0, on_device(row.predicting, device)]


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: by segment where the mask carries segments, else ``sdpa``.

    Args:
        module: the attention layer.
        query: ``[1, A, N, D]``; keys and values may have fewer heads.
        key: as the query.
        value: as the query.
        mask: :class:`Segments`, or what ``sdpa`` takes.
        options: as transformers passes them.

    Returns:
        ``[1, N, A, D]`` and no weights.

    Raises:
        NotImplementedError: the model asks for something that changes the scores otherwise.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not isinstance(mask, Segments):
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    unknown = [name for name in CHANGES_SCORES if options.get(name) is not None]
    if unknown or options.get("dropout"):
        raise NotImplementedError(f"packed attention has no {', '.join(unknown) or 'dropout'}")
    window = options.get("sliding_window")
    way = way_for(query, key, value, window)
    if way is None:
        return attend_by_segment(query, key, value, mask.segments, options.get("scaling"), window), None
    if (way.name, window) not in mask.prepared:
        mask.prepared[way.name, window] = way.prepare(mask.segments, window, query.device)
    dtype = computed_in(query)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    return way.attend(query, key, value, mask.prepared[way.name, window], options.get("scaling"), window), None


def register() -> None:
    """Make :func:`attend` known to transformers, with the masks of ``sdpa`` for every other forward."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)

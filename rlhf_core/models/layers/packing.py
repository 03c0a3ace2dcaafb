"""Sequences end to end in one row; each segment sees itself and the prompt that it continues, and nothing else.

Suffixes: ``_N`` tokens of the row, ``_A`` heads, ``_D`` head size, ``_H`` hidden.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from rlhf_core.models.layers.segments import (
    BLOCK,
    Operator,
    Segment,
    attend_by_segment,
    attend_flex,
    attend_row,
    block_mask,
    by_flash_attn,
    by_torch,
    layout,
    repeatable_gradients,
)
from rlhf_core.models.layers.trunk_and_head import Ids, on_device, trunk_and_head
from rlhf_core.types.errors import error_line

log = logging.getLogger("rlhf.models")
BY_SEGMENT = "a call per segment"
DEVICES = ("cuda",)
"""Where a call costs a launch."""
TOLERANCE = 0.1
"""Largest difference from the result by segment, of its largest value, that rounding to 16 bits explains: float32
differs from bfloat16 by up to 0.03 in these trials, other tokens by 0.3 and more."""
TRIED_WINDOW = 8
"""Short, so that one token more or less shows."""


@dataclass(frozen=True)
class AttentionBackend:
    """Attends in a row with one call."""

    name: str
    prepare: Callable[[Sequence[Segment], int | None, torch.device], Any]
    """Of the segments and the window: what lies on the device for all layers."""
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any, float | None, int | None], torch.Tensor]
    """Of query, key, value, what was prepared, scaling and window."""


def _by_sequences(name: str, operator: Operator) -> AttentionBackend:
    return AttentionBackend(
        name,
        lambda segments, window, device: layout(segments, device),
        lambda q, k, v, row, scaling, window: attend_row(operator, q, k, v, row=row, scaling=scaling, window=window),
    )


BACKENDS = (
    _by_sequences("torch's varlen_attn", by_torch),
    _by_sequences("flash-attn", by_flash_attn),
    AttentionBackend(
        "torch's FlexAttention",
        block_mask,
        lambda query, key, value, mask, scaling, window: attend_flex(query, key, value, mask, scaling),
    ),
)
"""In the order in which they are tried."""


class Kind(NamedTuple):
    """What decides whether a backend runs."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_heads: int
    head_size: int
    windowed: bool
    deterministic: bool


class Choice(NamedTuple):
    """The backend that a kind of tensors takes, None for by segment, and why it takes none of those before."""

    backend: AttentionBackend | None
    refused: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        return self.backend.name if self.backend else BY_SEGMENT


class UsedBackends:
    """What packed attention takes in this process."""

    by_name: ClassVar[dict[str, Choice]] = {}
    """By name; :func:`select_backend` fills it in."""
    allowed = tuple(backend.name for backend in BACKENDS)
    """Names of backends that are tried."""


def computed_in(query: torch.Tensor) -> torch.dtype:
    """Number type in which attention computes: autocast's where that is on, as of ``sdpa``, else the tensor's own."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def select_backend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None
) -> AttentionBackend | None:
    """The backend that tensors like these take, or None: by segment. Every kind is tried once."""
    choice, dtype = Choice(None), computed_in(query)
    one_size = query.shape[3] == key.shape[3] == value.shape[3]
    if one_size and query.device.type in DEVICES and dtype in (torch.float16, torch.bfloat16):
        heads = query.shape[1], key.shape[1], query.shape[3]
        kind = Kind(query.device, dtype, *heads, window is not None, torch.are_deterministic_algorithms_enabled())
        choice = first_backend(kind, UsedBackends.allowed)
    UsedBackends.by_name[choice.name] = choice
    return choice.backend


@functools.cache
def first_backend(kind: Kind, allowed: tuple[str, ...]) -> Choice:
    """The first backend that runs and agrees; what is chosen, and why not the others, is logged once."""
    refused: list[str] = []
    choice = Choice(None)
    for backend in (backend for backend in BACKENDS if backend.name in allowed):
        if (why := refusal(backend, kind)) is None:
            choice = Choice(backend)
            break
        refused.append(f"{backend.name}: {why}")
    choice = choice._replace(refused=tuple(refused))
    why_not = f" (not {'; not '.join(refused)})" if refused else ""
    log.info("attention of packed rows on %s in %s: %s%s", kind.device, kind.dtype, choice.name, why_not)
    return choice


@functools.cache
def refusal(backend: AttentionBackend, kind: Kind) -> str | None:
    """Why a backend is not taken, None if it runs and agrees on a row of one block and on one of several."""
    window = TRIED_WINDOW if kind.windowed else None
    try:
        for rows in ([(0, 1), (1, 3)], [(0, 2 * BLOCK), (2 * BLOCK, 2 * BLOCK + 5), (2 * BLOCK + 5, 3 * BLOCK + 7)]):
            segments = [Segment(own, rows[0] if n else (0, 0)) for n, own in enumerate(rows)]
            # whoever asks first, and however it computes, the answer is that for training; a checkpointed layer that
            # asks keeps none of the trial's tensors, and is not computed again for them
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                torch.autocast(kind.device.type, enabled=False),
                torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
                repeatable_gradients(kind.device),
            ):
                if (gap := _gap(backend, kind, segments, window)) > TOLERANCE:
                    return f"differs by {gap:.1g}"
    except Exception as error:  # whatever this build, device or head size lacks: by segment works everywhere
        return error_line(error)
    return None


def _gap(backend: AttentionBackend, kind: Kind, segments: Sequence[Segment], window: int | None) -> float:
    """Largest difference from the result by segment, of output and gradients, over the largest value of each."""
    length, scaling = segments[-1].own[1], kind.head_size**-0.5
    made = [
        # no random numbers are drawn: they are the run's
        torch.cos(torch.arange(count * length * kind.head_size, device=kind.device) * (0.7 + 0.01 * n))
        .view(1, count, length, kind.head_size)
        .to(kind.dtype)
        for n, count in enumerate((kind.heads, kind.key_heads, kind.key_heads))
    ]

    def results(attend: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        query, key, value = (x.clone().requires_grad_() for x in made)
        out = attend(query, key, value)
        upstream = torch.cos(torch.arange(out.numel(), device=out.device) * 0.3).view(out.shape).to(out.dtype)
        return [out.detach(), *torch.autograd.grad((out * upstream).sum(), (query, key, value))]

    prepared = backend.prepare(segments, window, kind.device)
    got = results(lambda query, key, value: backend.attend(query, key, value, prepared, scaling, window))
    want = results(lambda query, key, value: attend_by_segment(query, key, value, segments, scaling, window))
    gaps = [(a.float() - b.float()).abs().max() / b.float().abs().max() for a, b in zip(got, want, strict=True)]
    return float(torch.stack(gaps).max())


NAME = "rlhf_packed"
CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""What some models ask of their attention besides a scale and a window."""


class Segments(torch.Tensor):
    """Stands where the attention mask would, and carries the segments of the row."""

    segments: tuple[Segment, ...]
    """In the order in which they lie, without a gap; a prompt is one of them, or some side by side."""
    prepared: dict[tuple[str, int | None], Any]
    """The same on the device, by backend and window; made by the first layer that wants it."""


@dataclass(frozen=True)
class Row:
    """One row. Prompt (7, 8), completions (1, 2), (3,): ids 7 8 1, positions 0 1 2, predicting 1 2 1."""

    ids: list[int]
    positions: list[int]
    """Within each sequence."""
    segments: tuple[Segment, ...]
    target_positions: list[int]
    """Places whose output predicts each completion token, completion after completion."""


def pack(prompts: Ids, completions: Ids, share: bool) -> Row:
    """Lay sequences end to end; the last token of each predicts nothing and is left out."""
    ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    target_positions: list[int] = []
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
        target_positions += [last, *range(start, start + len(fed))][: len(completion)]
    return Row(ids, positions, tuple(segments), target_positions)


def packed_hidden(model: torch.nn.Module, prompts: Ids, completions: Ids, share: bool) -> torch.Tensor:
    """Return ``hidden_NH`` as ``trunk_and_head.padded_hidden``, its plain equivalent."""
    return row_hidden(trunk_and_head(model).trunk, pack(prompts, completions, share))


def row_hidden(trunk: torch.nn.Module, row: Row) -> torch.Tensor:
    """Hidden states ``[len(row.target_positions), H]`` at the places of a row that predict."""
    device = next(trunk.parameters()).device
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device).as_subclass(Segments)
    mask.segments, mask.prepared = row.segments, {}
    out = trunk(
        input_ids=on_device([row.ids], device),
        position_ids=on_device([row.positions], device),
        attention_mask=mask,
        use_cache=False,
    )
    return out.last_hidden_state[0, on_device(row.target_positions, device)]


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it, by segment: query ``[1, A, N, D]`` gives ``[1, N, A, D]``, no weights."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not isinstance(mask, Segments):
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    unknown = [name for name in CHANGES_SCORES if options.get(name) is not None]
    if unknown or options.get("dropout"):
        raise NotImplementedError(f"packed attention has no {', '.join(unknown) or 'dropout'}")
    window = options.get("sliding_window")
    backend = select_backend(query, key, value, window)
    if backend is None:
        return attend_by_segment(query, key, value, mask.segments, options.get("scaling"), window), None
    if (backend.name, window) not in mask.prepared:
        mask.prepared[backend.name, window] = backend.prepare(mask.segments, window, query.device)
    dtype = computed_in(query)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    return backend.attend(query, key, value, mask.prepared[backend.name, window], options.get("scaling"), window), None


def register() -> None:
    """Make :func:`attend` known to transformers, with the masks of ``sdpa`` for every other forward."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)

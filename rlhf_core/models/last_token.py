"""The last token's hidden state of each sequence, from rows without padding where the model allows it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch

from rlhf_core.models.layers import packing
from rlhf_core.models.layers.trunk_and_head import Ids, agree, base_model, check_length, pad_rows, quiet

log = logging.getLogger("rlhf.models")
WORTH_SHARING = 4
"""Fewer common tokens than this are laid as often as they occur."""

_known: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def last_token_hidden(trunk: torch.nn.Module, ids_B: Ids, *, without_padding: bool = True) -> torch.Tensor:
    """Return ``hidden_BH``, with gradient; it depends on nothing but each row's own tokens (beyond rounding).

    Args:
        trunk: a transformers decoder without its language-model head, or one wrapped by peft.
        ids_B: token ids, at least one each.
        without_padding: lay the sequences end to end where the trunk allows it.

    Raises:
        ValueError: a sequence has no tokens, or more than the rotary embeddings allow.
    """
    if not all(len(row) for row in ids_B):
        raise ValueError("a sequence has no tokens; its last one cannot be read")
    check_length(trunk, max(map(len, ids_B)))
    if without_padding and can_pack(trunk):
        return packed_last(trunk, ids_B)
    return padded_last(trunk, ids_B)


def padded_last(trunk: torch.nn.Module, ids_B: Ids) -> torch.Tensor:
    """The plain equivalent of :func:`packed_last`: one padded forward."""
    device = next(trunk.parameters()).device
    ids_BL, mask_BL = pad_rows(ids_B, device)
    hidden_BLH = trunk(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).last_hidden_state
    return hidden_BLH[torch.arange(len(ids_B), device=device), mask_BL.sum(1) - 1]


def packed_last(trunk: torch.nn.Module, ids_B: Ids) -> torch.Tensor:
    """One row without padding, common beginnings once."""
    shared_B = common_beginnings(ids_B)
    # the packed row leaves out the last token of each completion, so one that nobody reads is put there
    rests = [(*ids[n:], 0) for ids, n in zip(ids_B, shared_B)]
    row = packing.pack([ids[:n] for ids, n in zip(ids_B, shared_B)], rests, share=True)
    ends = [row.target_positions[stop - 1] for stop in accumulate(len(rest) for rest in rests)]
    return packing.row_hidden(trunk, replace(row, target_positions=ends))


def common_beginnings(ids_B: Ids) -> list[int]:
    """How many leading tokens of each sequence are laid once for it and its neighbours in sorted order: it joins the
    group before it while that saves most. At least one token of each stays its own.
    """
    rows = [tuple(row) for row in ids_B]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    with_next = [*(_common(rows[i], rows[j]) for i, j in pairwise(order)), 0]
    shared_B = [0] * len(rows)
    group, length = order[:1], 0
    for at, i in enumerate(order[1:], 1):
        common = with_next[at - 1] if len(group) == 1 else min(length, with_next[at - 1])
        gain = len(group) * common - (len(group) - 1) * length
        if common >= WORTH_SHARING and gain >= 0 and gain + common >= with_next[at]:
            group, length = [*group, i], common
        else:
            _assign(shared_B, group, length)
            group, length = [i], 0
    _assign(shared_B, group, length)
    return shared_B


def _assign(shared_B: list[int], group: Sequence[int], length: int) -> None:
    for member in group:
        shared_B[member] = length


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of equal leading tokens, one token of the shorter left aside."""
    most = min(len(first), len(second)) - 1
    return next((n for n in range(most) if first[n] != second[n]), most)


def can_pack(trunk: torch.nn.Module) -> bool:
    """Whether packed rows give this trunk's own hidden states, which the first call tries. Its attention goes through
    transformers' interface then, where ours stays.
    """
    base = base_model(trunk)
    if base not in _known:
        with torch.no_grad(), quiet(trunk):
            _known[base] = _packing_agrees(trunk)
    return _known[base] and base.config._attn_implementation == packing.NAME  # another may have been set since


def _packing_agrees(trunk: torch.nn.Module) -> bool:
    base = base_model(trunk)
    if getattr(base.config, "_attn_implementation", None) not in ("sdpa", packing.NAME):
        return False
    size = int(base.config.get_text_config().vocab_size)
    rows = [
        [(7 * i + 1) % size for i in range(9)],
        [(7 * i + 1) % size for i in range(6)] + [3 % size, 5 % size],
        [(5 * i + 2) % size for i in range(4)],
    ]
    before = base.config._attn_implementation
    packing.register()
    try:
        want, every_N = padded_last(trunk, rows), torch.cat([_every(trunk, row) for row in rows])
        base.set_attn_implementation(packing.NAME)
        whole = packing.pack([()] * len(rows), [(*row, 0) for row in rows], share=False)
        # every token, for in a trunk that looks both ways the last one may hardly differ
        apart = packing.row_hidden(trunk, replace(whole, target_positions=list(range(len(whole.ids)))))
        agrees = agree(apart, every_N, trunk) and agree(packed_last(trunk, rows), want, trunk)
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError, IndexError) as error:
        log.info("packing is off for %s: %s", type(base).__name__, error)
        agrees = False
    if not agrees:
        base.set_attn_implementation(before)
    return agrees


def _every(trunk: torch.nn.Module, row: Sequence[int]) -> torch.Tensor:
    """Hidden states ``[L, H]`` of one sequence alone."""
    ids = torch.tensor([row], device=next(trunk.parameters()).device)
    return trunk(input_ids=ids, use_cache=False).last_hidden_state[0]

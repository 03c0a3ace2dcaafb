"""Keys and values that are kept between the turns of an episode, within a budget."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core.config import ConfigError
from rlhf_core.models.layers.trunk_and_head import base_model, compute_dtype

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_native.config import NativeRolloutConfig

log = logging.getLogger("rlhf")


KeysValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one sequence outside of any batch, layer by layer ``[heads, positions, head_dim]``."""


def copy_row(cache: Any, row: int, first: int, last: int) -> KeysValues:
    """One sequence's positions ``first`` to ``last``; the cache must be growing."""
    return [layer.copy_row(row, first, last) for layer in cache.layers]


def lay_rows(cache: Any, rows: Sequence[KeysValues]) -> None:
    """Fill an empty growing cache with kept sequences."""
    for n, layer in enumerate(cache.layers):
        layer.lay([row[n] for row in rows])


@dataclass(frozen=True)
class _Entry:
    ids: tuple[int, ...]
    keys_values: KeysValues
    size: int


class TurnCache:
    """What of each episode has been read already, by counts of bytes alone. What does not fit is not stored, and
    nothing is dropped: episodes come round in turns, and the oldest would be the next."""

    def __init__(self, budget: int) -> None:
        self.budget, self.used, self.most_used = budget, 0, 0
        self.refused = 0
        """Turns that did not fit, whose episodes were read anew."""
        self._entries: dict[Hashable, _Entry] = {}

    def put(self, name: Hashable, ids: Sequence[int], keys_values: KeysValues) -> None:
        """Keep the keys and values of ``ids`` under an episode's name, if there is room."""
        self.drop(name)
        size = sum(t.numel() * t.element_size() for pair in keys_values for t in pair)
        if self.used + size > self.budget:
            self.refused += 1
            return
        self._entries[name] = _Entry(tuple(ids), keys_values, size)
        self.used += size
        self.most_used = max(self.most_used, self.used)

    def common(self, name: Hashable, ids: Sequence[int]) -> int:
        """How many leading tokens of ``ids`` need not be read; at least one is left to be read."""
        entry = self._entries.get(name)
        if entry is None:
            return 0
        most = min(len(entry.ids), len(ids) - 1)
        if entry.ids[:most] == tuple(ids[:most]):
            return most
        return next(n for n in range(most) if entry.ids[n] != ids[n])

    def take(self, name: Hashable, count: int) -> KeysValues:
        """Keys and values of an episode's first ``count`` tokens, which are then no longer kept."""
        keys_values = self._entries[name].keys_values
        self.drop(name)
        return [(k[:, :count], v[:, :count]) for k, v in keys_values]

    def drop(self, name: Hashable) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.used -= entry.size


def bytes_per_token(model: Any) -> int | None:
    """Keys and values of one position in all layers; None where the model's configuration does not say."""
    text = base_model(model).config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None)
    layers, hidden = getattr(text, "num_hidden_layers", None), getattr(text, "hidden_size", None)
    if not heads or not layers or not hidden:
        return None
    width = getattr(text, "head_dim", None) or hidden // text.num_attention_heads
    return 2 * layers * heads * width * compute_dtype(model).itemsize


def check_budget(config: NativeRolloutConfig, ctx: BuildContext) -> None:
    """Refuse a ``keep_mib`` that holds not one episode; the default only warns."""
    run = ctx.config
    plays = getattr(getattr(run, "agent", None), "plays_environment", False)
    most = getattr(getattr(getattr(run, "trainer", None), "sampling", None), "max_tokens", None)
    if not plays or most is None or not config.keep_mib:
        return
    each = bytes_per_token(ctx.policy.model)
    if each is None or most * each <= config.keep_mib << 20:
        return
    needed = (most * each >> 20) + 1
    error = ConfigError(
        f"rollout.keep_mib {config.keep_mib} holds the keys and values of {(config.keep_mib << 20) // each:,} tokens, "
        f"fewer than one episode may have (trainer.sampling.max_tokens {most:,})",
        why="what does not fit is read anew at every turn",
        fix=f"--set rollout.keep_mib={needed} for one episode, as many times that as there are in a batch; or 0",
    )
    if config.keep_mib != type(config).model_fields["keep_mib"].default:
        raise error
    log.warning("%s", error)

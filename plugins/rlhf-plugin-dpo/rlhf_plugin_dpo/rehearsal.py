"""Pairs without texts and their module, from which a plan counts the memory of an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_plugin_dpo.items import make_pair
from rlhf_plugin_dpo.pair_module import PairModule


def pair_rehearsal(
    config: Any, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]
) -> tuple[PairModule, Sequence[Any]]:
    """Module and items as the trainer has them, for sizes (tokens of the prompt, tokens of each response) of pairs."""
    conversation = config.sft.weight > 0 and config.sft.on == "conversation"
    paths = {"shared_prefix": config.share_prefix}
    reads_reference = getattr(ctx.config.loss, "reference", "optional") != "unused" and not config.reference_free
    pairs: list[Any] = []
    for n, (prompt, responses) in enumerate(sizes):
        pair = make_pair(str(n), _ids(prompt, n), _ids(responses[0], n), _ids(responses[-1], n + 1))
        pair = pair.with_refs(-1.0, -1.0) if reads_reference else pair
        pairs.append(replace(pair, nll_scale=1.0) if config.sft.weight > 0 else pair)
    return PairModule(ctx.policy.model, config.ld_alpha, conversation, paths), pairs


def _ids(count: int, which: int) -> tuple[int, ...]:
    return tuple((which >> (2 * (n % 5))) & 3 for n in range(count))

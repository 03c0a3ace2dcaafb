"""Rotary embeddings whose frequencies depend on how long a sequence is, and up to which length they do not.

LongRoPE takes one set of frequencies up to its original context and another beyond it; dynamic NTK computes new ones
for every length beyond. transformers chooses by the longest sequence of a batch and for all of its tokens at once, so
that beyond that length a result would depend on neighbours. Nor could it be computed sequence by sequence: a token's
logprob would depend on how many tokens come after it, and what was sampled with keys of the old frequencies would not
be what is trained. So nothing here runs beyond that length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_core.models.layers.trunk_and_head import base_model


def length_limit(model: Any) -> int | None:
    """Most tokens of a sequence for which frequencies are those of every shorter one; None where they always are.

    Args:
        model: a transformers model, or one wrapped by peft.
    """
    return min((limit for _, limit in _limits(base_model(model).config)), default=None)


def rope_type(model: Any) -> str:
    """Names what limits the length (``longrope``, ``dynamic``); empty where nothing does."""
    return next((name for name, _ in _limits(base_model(model).config)), "")


def check_length(model: Any, longest: int) -> None:
    """Refuse sequences beyond :func:`length_limit`.

    Raises:
        ValueError: ``longest`` tokens are more than that.
    """
    limit = length_limit(model)
    if limit is not None and longest > limit:
        raise ValueError(
            f"a sequence of {longest} tokens, but {rope_type(model)} rotary embeddings of "
            f"{type(base_model(model)).__name__} change with the length beyond {limit}: the result would depend on the "
            "other sequences of the batch. Keep prompt and completion within that"
        )


def _limits(config: Any) -> Iterable[tuple[str, int]]:
    """Kind and limit of every set of rotary parameters that depends on the length."""
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]  # one set for each kind of layer
    for entry in nested or [parameters]:
        kind = str(entry.get("rope_type", entry.get("type", "default")))
        if kind == "longrope":
            yield kind, int(entry.get("original_max_position_embeddings") or text.original_max_position_embeddings)
        elif "dynamic" in kind:
            yield kind, int(text.max_position_embeddings)

"""Which prompts fit. Nothing is dropped silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rlhf_core.errors import DatasetError
from rlhf_core.types import Prompt


def admit(
    prompts: Sequence[Prompt], encode: Callable[[Prompt], tuple[int, ...]], *, limit: int, context: int, max_tokens: int,
    max_dropped_fraction: float,
) -> tuple[list[Prompt], Counter[str]]:
    """Keep the prompts that fit the length limit and leave room for the completion.

    Args:
        encode: prompt -> token ids.
        limit: most prompt tokens allowed (``dataset.max_prompt_tokens``).
        context: prompt + completion tokens that the model allows.
        max_tokens: completion tokens to leave room for.
        max_dropped_fraction: refuse the dataset when more than this share would go.

    Returns:
        (kept, counts by reason).

    Raises:
        DatasetError: too many would be dropped; names the longest.
    """
    room = context - max_tokens
    if room < 1:
        raise DatasetError(f"max_tokens {max_tokens} leaves no room for a prompt in a context of {context} tokens",
                           fix="lower trainer.sampling.max_tokens")
    lengths = {p.id: len(encode(p)) for p in prompts}
    kept = [p for p in prompts if lengths[p.id] <= min(limit, room)]
    counts = Counter({"prompts_too_long": len(prompts) - len(kept)})
    if len(prompts) - len(kept) > max_dropped_fraction * len(prompts):
        longest = sorted(lengths, key=lambda i: -lengths[i])[:3]
        raise DatasetError(
            f"{len(prompts) - len(kept)} of {len(prompts)} prompts are longer than {min(limit, room)} tokens",
            where=", ".join(f"{i} ({lengths[i]} tokens)" for i in longest),
            why=f"limit {limit}, context {context} less max_tokens {max_tokens}",
            fix="raise dataset.max_prompt_tokens, lower trainer.sampling.max_tokens, or allow more with dataset.max_dropped_fraction")
    return kept, +counts

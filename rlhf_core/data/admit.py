"""Which prompts fit. Nothing is dropped silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rlhf_core.errors import DatasetError
from rlhf_core.types import Prompt

EXAMPLES = 3


def admit(
    prompts: Sequence[Prompt], encode: Callable[[Prompt], tuple[int, ...]], *, limit: int, context: int,
    max_tokens: int, max_dropped_fraction: float,
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
        DatasetError: too many would be dropped, or all of one source; names the longest.
    """
    if context - max_tokens < 1:
        raise DatasetError(f"max_tokens {max_tokens} leaves no room for a prompt in a context of {context} tokens",
                           fix="lower trainer.sampling.max_tokens")
    room = min(limit, context - max_tokens)
    lengths = {p.id: len(encode(p)) for p in prompts}
    kept = [p for p in prompts if lengths[p.id] <= room]
    dropped = len(prompts) - len(kept)
    lost = {p.source for p in prompts} - {p.source for p in kept}
    if lost or dropped > max_dropped_fraction * len(prompts):
        whose = f" (all of source {', '.join(map(repr, sorted(lost)))})" if lost else ""
        longest = sorted(lengths, key=lambda i: -lengths[i])[:EXAMPLES]
        raise DatasetError(
            f"{dropped} of {len(prompts)} prompts{whose} are longer than {room} tokens",
            where="longest: " + ", ".join(f"{i} ({lengths[i]} tokens)" for i in longest),
            why=f"limit {limit}, context {context} less max_tokens {max_tokens}, allowed to drop "
                f"{max_dropped_fraction:.0%}",
            fix="raise dataset.max_prompt_tokens, lower trainer.sampling.max_tokens, or allow more with "
                "dataset.max_dropped_fraction")
    return kept, +Counter({"prompts_too_long": dropped})

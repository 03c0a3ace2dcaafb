"""Which prompts fit. Nothing is dropped silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rlhf_core.types.errors import DatasetError
from rlhf_core.types.rollouts import Prompt

EXAMPLES = 3


def admit(
    prompts: Sequence[Prompt],
    encode: Callable[[Prompt], tuple[int, ...]],
    *,
    limit: int,
    context: int,
    max_tokens: int,
    max_dropped_fraction: float,
    setting: str = "trainer.sampling.max_tokens",
) -> tuple[list[Prompt], Counter[str]]:
    """Keep the prompts that fit the length limit and leave room for the completion.

    Args:
        encode: prompt -> token ids.
        limit: most prompt tokens allowed (``dataset.max_prompt_tokens``).
        context: prompt + completion tokens that the model allows.
        max_tokens: completion tokens to leave room for.
        max_dropped_fraction: refuse the dataset when more than this share would go.
        setting: where ``max_tokens`` was set, for the message.

    Returns:
        (kept, counts by reason).
    """
    if context - max_tokens < 1:
        raise DatasetError(
            f"max_tokens {max_tokens} leaves no room for a prompt in a context of {context} tokens",
            fix=f"lower {setting}",
        )
    room = min(limit, context - max_tokens)
    of_context = f"lower {setting}, or take a model with a longer context"
    lengths = {p.id: len(encode(p)) for p in prompts}
    fitting = [p for p in prompts if lengths[p.id] <= room]
    refuse_too_many(
        [(p.id, p.source, lengths[p.id]) for p in prompts],
        room,
        max_dropped_fraction,
        "prompts",
        f"limit {limit}, context {context} less max_tokens {max_tokens}",
        of_context if room < limit else "raise dataset.max_prompt_tokens",
    )
    return fitting, +Counter({"prompts_too_long": len(prompts) - len(fitting)})


def refuse_too_many(
    rows: Sequence[tuple[str, str, int]], room: int, max_dropped_fraction: float, what: str, why: str, fix: str
) -> None:
    """Refuse a dataset that would lose too many rows, or all of one source, to a length limit.

    Args:
        rows: (id, source, tokens) of every row.
        room: most tokens allowed.
        max_dropped_fraction: largest share of the rows that may go.
        what: ``prompts`` or ``examples``.
        why: what the limit comes from.
        fix: settings that change it.
    """
    dropped = [row for row in rows if row[2] > room]
    lost = {source for _, source, _ in rows} - {source for _, source, tokens in rows if tokens <= room}
    if lost or len(dropped) > max_dropped_fraction * len(rows):
        whole_sources = f" (all of source {', '.join(map(repr, sorted(lost)))})" if lost else ""
        longest = sorted(dropped, key=lambda row: -row[2])[:EXAMPLES]
        raise DatasetError(
            f"{len(dropped)} of {len(rows)} {what}{whole_sources} are longer than {room} tokens",
            where="longest: " + ", ".join(f"{name} ({tokens} tokens)" for name, _, tokens in longest),
            why=f"{why}, allowed to drop {max_dropped_fraction:.0%}" + (", never a whole source" if lost else ""),
            fix=fix + (", or drop the source" if lost else ", or allow more with dataset.max_dropped_fraction"),
        )

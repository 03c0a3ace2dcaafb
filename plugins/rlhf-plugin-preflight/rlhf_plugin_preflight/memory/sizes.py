"""Lengths that a plan is made for: those of the run's rows where they can be read, else what is given or assumed."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlhf_core.config import ConfigError, RlhfError
from rlhf_plugin_preflight.dry_run.rows import Rows, read_all
from rlhf_plugin_preflight.memory.shapes import is_shape

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, RunConfig

LOOKED_AT = 2000
"""Most rows that are tokenized, spread over the data."""
DRAWS = 200
"""Micro-batches that are drawn to find a heavy one."""
ASSUMED_PROMPT = 512


class Row(NamedTuple):
    """Tokens of a prompt and of the replies to it. Example: ``Row(40, (180, 210))`` for a pair."""

    prompt: int
    replies: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.prompt + sum(self.replies)


class Lengths(NamedTuple):
    """What is known of the data. Example: ``Lengths([Row(40, (180, 210))], "lengths of 1 rows of the data", 0)``"""

    rows: Sequence[Row]
    source: str
    """Where they are from, for the reader."""
    heldout: int = sys.maxsize
    """Rows that are held out, at most."""


@dataclass(frozen=True)
class Sizes:
    micro_batch: tuple[Row, ...]
    """Rows of one micro-batch, a heavy one of the run."""
    micro_batches: int
    prompts: tuple[int, ...]
    """Prompts of one rank that are sampled from together, the longest ones."""
    group: int
    completion: int
    """Most tokens of a sampled completion; 0 where nothing is sampled."""
    source: str
    """Where the lengths are from, for the reader."""


def sizes_of(
    run: RunConfig, ctx: BuildContext, context: int, prompt: int | None = None, reply: int | None = None
) -> Sizes:
    """Lengths for a plan; ``prompt`` and ``reply`` instead of the data's, ``sampling.max_tokens`` if sampled."""
    trainer: Any = run.trainer
    online = run.samples_itself
    if online and reply is not None:
        raise ConfigError("a sampled reply is as long as trainer.sampling.max_tokens", fix="set that instead")
    lengths = _fixed_lengths(run, context, prompt, reply) if prompt or reply else _read(run, ctx, context)
    rows = lengths.rows
    if online:
        return _online(run, ctx.world_size, lengths)
    settings = trainer.micro_batches(ctx.world_size) if hasattr(trainer, "micro_batches") else trainer
    share = max(1, math.ceil(trainer.batch_size / ctx.world_size))
    size = min(settings.micro_batch_size, share)
    sampled = min(int(getattr(trainer, "sample_prompts", 0)), lengths.heldout)
    longest = sorted((row.prompt for row in rows), reverse=True)
    each = math.ceil(sampled / ctx.world_size)
    return Sizes(
        micro_batch=_heavy(rows, size),
        micro_batches=math.ceil(share / size),
        prompts=tuple((longest * each)[:each]),
        group=1,
        completion=int(trainer.sampling.max_tokens) if sampled else 0,
        source=lengths.source,
    )


def _online(run: RunConfig, world_size: int, lengths: Lengths) -> Sizes:
    trainer: Any = run.trainer
    rows = lengths.rows
    settings = trainer.micro_batches(world_size)
    completion, group = int(trainer.sampling.max_tokens), int(trainer.group_size)
    prompts = max(1, math.ceil(trainer.prompts_per_step / world_size))
    batch = max(1, math.ceil(trainer.sequences_per_update() / world_size))
    longest = sorted((row.prompt for row in rows), reverse=True)
    budget = getattr(trainer, "micro_batch_tokens", None)
    size = min(settings.micro_batch_size, batch)
    if budget is not None:
        one = longest[0] + group * completion
        size = max(1, min(batch, group * (budget // one) or (budget - longest[0]) // completion))
    pairs = trainer.feeds == "pairs"
    together = 2 if pairs else min(group, size)
    heavy = list(
        _heavy([Row(row.prompt, (completion,) * together) for row in rows], math.ceil(size / (1 if pairs else group)))
    )
    if not pairs:
        rest = size - sum(len(row.replies) for row in heavy[:-1])
        heavy[-1] = Row(heavy[-1].prompt, (completion,) * rest)
    evaluated = max(int(trainer.eval_samples), int(getattr(trainer, "gold_samples", 0)) if trainer.eval_samples else 0)
    heldout_rows = math.ceil(min(evaluated, lengths.heldout) / world_size)
    wide = heldout_rows > prompts * group
    return Sizes(
        micro_batch=tuple(heavy),
        micro_batches=math.ceil(batch / size),
        prompts=tuple((longest * (heldout_rows if wide else prompts))[: heldout_rows if wide else prompts]),
        group=1 if wide else group,
        completion=completion,
        source=lengths.source,
    )


def _heavy(rows: Sequence[Row], size: int) -> tuple[Row, ...]:
    """The heaviest of some micro-batches that are drawn from the rows, the same every time."""
    rng = np.random.default_rng(0)
    best: tuple[Row, ...] = ()
    for _ in range(DRAWS):
        drawn = tuple(rows[i] for i in rng.integers(0, len(rows), size))
        best = max(best, drawn, key=lambda part: sum(row.tokens for row in part))
        if len(set(rows)) == 1:
            break
    return best


def _fixed_lengths(run: RunConfig, context: int, prompt: int | None, reply: int | None) -> Lengths:
    trainer: Any = run.trainer
    if run.samples_itself:
        completion = int(trainer.sampling.max_tokens)
        prompt = ASSUMED_PROMPT if prompt is None else prompt
        _fits(prompt + completion, context)
        return Lengths(
            [Row(prompt, (completion,))], f"prompts of {prompt} and completions of {completion} tokens, as given"
        )
    limit = min(int(getattr(trainer, "max_length", 1024)), context)
    prompt = min(ASSUMED_PROMPT, limit // 2) if prompt is None else prompt
    reply = limit - prompt if reply is None else reply
    _fits(prompt + max(1, reply), min(limit, context))
    many = 2 if getattr(trainer, "feeds", None) == "pairs" else 1
    return Lengths([Row(prompt, (reply,) * many)], f"prompts of {prompt} and replies of {reply} tokens, as given")


def _fits(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise ConfigError(f"{tokens} tokens do not fit: at most {limit} do", fix="give fewer tokens")


def _read(run: RunConfig, ctx: BuildContext, context: int) -> Lengths:
    """Of the run's rows, tokenized; where that cannot be, lengths that are assumed."""
    why = "a shape has no tokenizer" if is_shape(run.model.path) else "the data is not on this machine"
    try:
        rows = None if is_shape(run.model.path) else read_all(run, ctx)
        if rows is not None and rows.train:
            lengths = _tokenized(run, rows, context)
            return Lengths(lengths, f"lengths of {len(rows.train):,} rows of the data", len(rows.heldout))
    except (RlhfError, OSError) as error:
        why = str(error).split("\n")[0]
    trainer: Any = run.trainer
    if run.samples_itself:
        completion = int(trainer.sampling.max_tokens)
        prompt = max(1, min(run.dataset.max_prompt_tokens or ASSUMED_PROMPT, context - completion))
        return Lengths([Row(prompt, (completion,))], f"prompts of {prompt} tokens assumed: {why}")
    limit = min(int(getattr(trainer, "max_length", 1024)), context)
    prompt = max(1, min(ASSUMED_PROMPT, limit // 2))
    many = 2 if getattr(trainer, "feeds", None) == "pairs" else 1
    return Lengths(
        [Row(prompt, (max(1, limit - prompt),) * many)], f"every row as long as max_length allows, assumed: {why}"
    )


def _tokenized(run: RunConfig, rows: Rows, context: int) -> list[Row]:
    """Lengths of the rows that fit."""
    from rlhf_core.models import load_tokenizer

    trainer: Any = run.trainer
    sizes = count_tokens(run, load_tokenizer(run.model), spread(rows))
    if rows.what == "prompts":
        limit = min(run.dataset.max_prompt_tokens or context, context - int(trainer.sampling.max_tokens))
        return [row for row in sizes if row.prompt <= limit] or [Row(max(1, limit), ())]
    limit = min(int(getattr(trainer, "max_length", 1024)), context)
    return [row for row in sizes if row.prompt + max(row.replies) <= limit] or [Row(max(1, limit // 2), (limit // 2,))]


def spread(rows: Rows) -> Sequence[Any]:
    """The rows that are tokenized, spread over those to train on."""
    return rows.train[:: max(1, math.ceil(len(rows.train) / LOOKED_AT))]


def count_tokens(run: RunConfig, tokenizer: Any, rows: Sequence[Any]) -> list[Row]:
    """Tokens of prompts, or of the prompts and replies of other rows."""
    from rlhf_core.data.conversations import replies
    from rlhf_core.models import Formatter

    formatter = Formatter(tokenizer, run.model.prompt_format, run.model.tool_format)
    if run.samples_itself:
        return [Row(len(formatter.encode_prompt(row)), ()) for row in rows]
    return [
        Row(
            len(formatter.encode(row.prompt, row.tools)),
            tuple(len(formatter.encode_reply(row.prompt, *one, row.tools)) for one in replies(row)),
        )
        for row in rows
    ]
